"""The rows of a lookup that follows a stream equal those of a plain loop over the records up to the same point.

This is so for any pieces in which the stream is read, and a recorded version always gives the same rows.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from strandline.core.lookups.lookup import LookupSpec
from strandline.core.lookups.packed_rows import pack_rows
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.processing.formats.lookups.rows import digest_of, kept_rows
from strandline.processing.source.followed import reading
from strandline.processing.source.followed.reading import SourceReader
from tests.support.memory_log import MemoryLog

SEEDS = int(os.environ.get("STRANDLINE_LOOKUP_SEEDS", "8"))
STREAM = StreamSpec.from_document(
    {
        "stream": "registry",
        "partitions": 3,
        "key": "device",
        "schema": {
            "device": "string",
            "number": "long?",
            "price": "decimal(6,2)?",
            "seen": "timestamp?",
            "gone": "boolean?",
            "beside": "string?",
        },
    }
)
FIELDS = {
    "device": "string",
    "number": {"type": "long", "max": 50},
    "price": "decimal(6,2)?",
    "seen": {"type": "timestamp", "required": False},
}


class World:
    """A registry's log, its lookup, and what a plain reading makes of it."""

    def __init__(self, seed: int, ledger: Ledger) -> None:
        self.dice = dice = random.Random(seed)
        self.ledger = ledger
        self.log = MemoryLog("registry", 3)
        self.key = dice.choice([["device"], ["device", "number"]])
        self.spec = LookupSpec.from_document(
            {
                "lookup": "devices",
                "schema": FIELDS,
                "key": self.key,
                "source": {"stream": "registry", "deleted_if": "gone or number < 0", "every": "5s"},
            }
        )
        ledger.put_stream("registry", STREAM.as_document())
        ledger.set_topic_id("registry", "id-1")

    def append(self, count: int) -> None:
        dice = self.dice
        for _ in range(count):
            device = f"d{dice.randrange(12)}ü"
            partition = sum(device.encode()) % 3
            what = dice.random()
            value: bytes | None
            if what < 0.1:
                value = None
            elif what < 0.15:
                value = b"{broken"
            else:
                made: dict[str, Any] = {
                    "price": f"{dice.randrange(9)}.5",
                    "seen": 1_700_000_000_000 + dice.randrange(9),
                    "gone": dice.random() < 0.2,
                }
                record = {name: one for name, one in made.items() if dice.random() < 0.4} | {"device": device}
                if dice.random() < 0.95:
                    record["number"] = dice.randrange(-2, 4) if dice.random() > 0.1 else 51
                if dice.random() < 0.03:
                    del record["device"]
                value = json.dumps(record).encode()
            self.log.append(partition, value, device.encode())

    def expected(self, position: dict[int, int]) -> tuple[list[tuple[Any, ...]], int]:
        """The rows, and how many records could be none: by plain Python."""
        rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        skipped = Counter[str]()
        for partition, end in position.items():
            for message in self.log.messages[partition][:end]:
                if message.of_value is None:
                    if self.key == ["device"]:
                        rows.pop((message.of_key.decode(),), None)
                    else:
                        skipped["tombstone"] += 1
                    continue
                if message.of_value == b"{broken":
                    skipped["broken"] += 1
                    continue
                record = json.loads(message.of_value)
                key = tuple(record.get(name) for name in self.key)
                number = record.get("number")
                if "device" not in record:
                    skipped["device"] += 1
                elif record.get("gone") or (number is not None and number < 0):
                    if None in key:
                        skipped["key"] += 1
                    else:
                        rows.pop(key, None)
                elif number is None or number > 50:
                    skipped["number"] += 1
                else:
                    price = None if record.get("price") is None else Decimal(record["price"])
                    seen = record.get("seen")
                    rows[key] = (record["device"], number, price, seen)
        return sorted(rows.values(), key=repr), sum(skipped.values())

    def rows_of(self, version: int) -> list[tuple[Any, ...]]:
        row = self.ledger.lookup_version("devices", version)
        kept = kept_rows(row, self.ledger.lookup_table(row.digest)).to_pylist()
        found = [
            (
                one["device"],
                one["number"],
                one["price"],
                None if one["seen"] is None else round(one["seen"].timestamp() * 1000),
            )
            for one in kept
        ]
        return sorted(found, key=repr)


@pytest.mark.guarantee(
    "G520",
    "The rows of a lookup that follows a stream equal a plain read of its records up to a log position, in any pieces "
    "and by any process. The position is recorded with them, and a version never changes for a replay.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_rows_are_what_a_plain_reading_gives_in_whatever_pieces_the_stream_is_read(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
    world = World(seed, ledger)
    monkeypatch.setattr(reading, "LogReader", world.log.reader)
    log: Any = world.log
    world.append(world.dice.randrange(40))
    text, count, begin = SourceReader(ledger, log, dict).read_all(world.spec)
    ledger.put_lookup(
        "devices", world.spec.without_rows(), digest_of(world.spec, text), pack_rows(text), count, source=begin
    )
    ledger.submit_job("j", "", {"pipeline": "j"}, lookups={"devices": 1})  # a job that needs all of them
    seen: dict[int, list[tuple[Any, ...]]] = {}
    for _ in range(6):
        state = ledger.lookup_sources()["devices"]
        assert state.position is not None
        rows, skipped = world.expected(state.position["registry"])
        version = ledger.lookup("devices").version
        assert (world.rows_of(version), state.skipped) == (rows, skipped), f"seed {seed}"
        seen[version] = rows
        world.append(world.dice.choice([0, 1, 7, 40]))
        monkeypatch.setattr(reading, "READ_S_MAX", world.dice.choice([-1.0, 30.0]))  # one piece alone, or all
        ledger.release_lookups("")  # it is due at once
        claimed = ledger.claim_lookup("devices", "me", 0)
        assert claimed is not None
        read = SourceReader(ledger, log, dict).read_on(ledger.lookup("devices"), claimed.position)
        assert read.packed is None or read.rows == len(world.expected(read.position["registry"])[0])  # type: ignore[index]
        ledger.record_lookup_rows("devices", claimed.claim, read, 0)
    assert {version: world.rows_of(version) for version in seen} == seen, "and no version changes"
    ledger.close()
