"""CPU-seconds to decode a million records, single-threaded: `python -m benchmarks.decoder`.

The records are those of work W1, variations on them that leave the decoder's fastest way, and records of ten fields.
"""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime

from strandline.processing.formats.decoder import Decoder, RecordField
from strandline.processing.pipelines.event_time import EventTimeSource

RECORDS = 10_000
ROUNDS = 50
START_MS = 1_700_000_000_000

Lines = list[bytes | None]


def w1(number: int, rest: str = "") -> bytes:
    time_ms = START_MS + number * 5
    return f'{{"device":"device-{number % 1000:04d}","ts":{time_ms},"temp":{20 + number % 977 / 100}{rest}}}'.encode()


def with_text_time(number: int) -> bytes:
    moment = datetime.fromtimestamp((START_MS + number * 5) / 1000, UTC).isoformat(timespec="milliseconds")
    return f'{{"device":"device-{number % 1000:04d}","ts":"{moment}","temp":{20 + number % 977 / 100}}}'.encode()


def with_price(number: int) -> bytes:
    return w1(number)[:-1] + f',"price":{number % 9000 / 100:.2f}}}'.encode()


def wide(number: int) -> bytes:
    moment = datetime.fromtimestamp((START_MS + number * 5) / 1000, UTC).isoformat(timespec="milliseconds")
    note = '"checked"' if number % 3 else "null"
    seen = f',"seen":{START_MS + number}' if number % 2 else ""
    return (
        f'{{"device":"device-{number % 1000:04d}","site":"site {number % 50}","ts":"{moment}","temp":{20 + number % 977 / 100},'
        f'"humidity":{number % 100 / 100},"pressure":{950 + number % 800 / 8},"count":{number},'
        f'"price":{number % 9000 / 100:.2f},"note":{note}{seen}}}'
    ).encode()


def one_bad(number: int) -> bytes:
    return b'{"device":"a","ts":1,"temp":1,"ts":2}' if number == RECORDS // 2 else w1(number)


def broken(number: int, good: bytes, chance: random.Random) -> bytes:
    bad = [good[:-9], b'{"device":"a","ts":"soon","temp":1}', b'{"device":"a","ts":1,"temp":1,"ts":2}']
    return chance.choice(bad) if chance.random() < 0.01 else good


W1_FIELDS = [RecordField("device", "string"), RecordField("ts", "timestamp"), RecordField("temp", "double", min=-90)]
PRICE = RecordField("price", "decimal(10,2)")
WIDE_FIELDS = [
    *W1_FIELDS,
    RecordField("site", "string"),
    RecordField("humidity", "double", min=0, max=1),
    RecordField("pressure", "double"),
    RecordField("count", "long"),
    PRICE,
    RecordField("note", "string", required=False),
    RecordField("seen", "timestamp", required=False),
]


def cpu_s_per_million(lines: Lines, fields: list[RecordField]) -> float:
    """The best of several rounds: what the machine does when nothing else runs."""
    decoder = Decoder(fields, EventTimeSource("ts"), [field.name for field in fields if field.name != "ts"])
    log_times_ms = [START_MS + number * 5 for number in range(len(lines))]
    best_s = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        decoder.decode(lines, log_times_ms, START_MS - 10_000, 300_000)
        best_s = min(best_s, time.process_time() - began)
    return best_s / len(lines) * 1_000_000


def works() -> dict[str, tuple[Lines, list[RecordField]]]:
    chance = random.Random(1)
    numbers = range(RECORDS)
    return {
        "W1: device, ts, temp": ([w1(number) for number in numbers], W1_FIELDS),
        "W1, one bad record": ([one_bad(number) for number in numbers], W1_FIELDS),
        "W1, 1 % bad records": ([broken(number, w1(number), chance) for number in numbers], W1_FIELDS),
        "ts as ISO 8601 text": ([with_text_time(number) for number in numbers], W1_FIELDS),
        "an undeclared field": ([w1(number, ',"site":7') for number in numbers], W1_FIELDS),
        "a decimal(10,2)": ([with_price(number) for number in numbers], [*W1_FIELDS, PRICE]),
        "ten fields": ([wide(number) for number in numbers], WIDE_FIELDS),
        "ten fields, 1 % bad": ([broken(number, wide(number), chance) for number in numbers], WIDE_FIELDS),
    }


def main() -> None:
    for name, (lines, fields) in works().items():
        print(f"{name:25} {cpu_s_per_million(lines, fields):6.3f} CPU-seconds per million records")


if __name__ == "__main__":
    main()
