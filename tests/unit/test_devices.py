"""Devices of a stream, according to its newest records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from strandline.core.record_headers import HEADER_SOURCE, RECORD_KEY, pack_header_values
from strandline.ledger.ledger import Ledger
from strandline.log.kafka_status import LogRange, NewestRecords, StoredDeadLetter
from strandline.services.jobs.devices import KEPT_S, Devices, covered_from_ms, devices_of
from strandline.services.processes.limited_work import run_here
from tests.support.control import BOTH, Api

NOW_MS = 1_700_000_000_000


def newest_of(records: Sequence[tuple[int, int, int, bytes | None]], packed: bytes | None = None) -> NewestRecords:
    """Return records of (partition, offset, log time, value)."""
    partitions, offsets, times, values = (list(one) for one in zip(*records, strict=True))
    return NewestRecords(partitions, offsets, times, values, [packed] * len(records))


def value(device: str) -> bytes:
    return f'{{"turbine": "{device}"}}'.encode()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    made = Api(ledger)
    keyed = BOTH.replace("retention: 7d", "key: turbine\nretention: 7d", 1)
    assert made.apply(keyed).status_code == 200
    made.log.ranges = {"turbines": LogRange({0: 0, 1: 40}, {0: 3, 1: 42})}
    yield made
    ledger.close()


def test_devices_are_counted_by_key_or_sender() -> None:
    records = [
        (0, 0, NOW_MS, value("T1")), (0, 1, NOW_MS + 4_000, value("T2")), (0, 2, NOW_MS + 6_000, value("T1")),
        (1, 7, NOW_MS + 8_000, value("T1")), (1, 8, NOW_MS + 9_000, b"no JSON"),
    ]  # fmt: skip
    packed = pack_header_values(None, {HEADER_SOURCE: b"http:10.0.0.9"})
    rejected = {(0, 1): ("power", "late"), (1, 8): ("power", "decode"), (5, 5): ("power", "schema")}
    found = {one.device: one for one in devices_of("turbine", newest_of(records, packed), rejected)}
    assert set(found) == {"T1", "T2", "http:10.0.0.9"}
    one = found["T1"]
    assert (one.records, one.last_ms, one.interval_ms, one.rejected, one.partition) == (3, NOW_MS + 8_000, 4_000, 0, 1)
    assert (one.offset, one.rejected_job, one.rejected_reason) == (7, None, None), "the position of the newest record"
    assert (found["T2"].rejected_job, found["T2"].rejected_reason) == ("power", "late")
    assert (found["T2"].rejected, found["T2"].interval_ms, found["http:10.0.0.9"].rejected) == (1, None, 1)
    assert [one.device for one in devices_of(None, newest_of(records), {})] == [""], "no key and no sender"
    by_key = pack_header_values(None, {HEADER_SOURCE: b"http:10.0.0.9", RECORD_KEY: b"T7"})
    assert [one.device for one in devices_of(None, newest_of(records, by_key), {})] == ["T7"]


def test_the_reason_of_a_device_is_that_of_its_newest_rejected_record() -> None:
    records = [
        (0, 0, NOW_MS + 9_000, value("T1")),
        (1, 3, NOW_MS + 5_000, value("T1")),
        (1, 4, NOW_MS + 7_000, value("T1")),
    ]
    rejected = {(0, 0): ("power", "future_event"), (1, 3): ("power", "decode"), (1, 4): ("other", "late")}
    (one,) = devices_of("turbine", newest_of(records), rejected)
    assert (one.rejected, one.rejected_job, one.rejected_reason) == (3, "power", "future_event")
    assert (one.partition, one.offset) == (0, 0)


def test_the_range_begins_where_the_shortest_partition_begins() -> None:
    records = [(0, 0, 1_000, b""), (0, 1, 2_000, b""), (1, 41, 5_000, b""), (1, 42, 6_000, b"")]
    newest = newest_of(records)
    assert covered_from_ms(newest, {0: 0, 1: 41}, {0: 2, 1: 43}, 9_000) is None, "all records were read"
    assert covered_from_ms(newest, {0: 0, 1: 40}, {0: 2, 1: 43}, 9_000) == 5_000
    assert covered_from_ms(newest, {0: 0, 1: 41, 2: 0}, {0: 2, 1: 43, 2: 8}, 9_000) == 9_000, "2 was not read"
    assert covered_from_ms(newest, {0: 0, 1: 41, 2: 8}, {0: 2, 1: 43, 2: 8}, 9_000) is None, "2 is empty"


@pytest.mark.guarantee(
    "G985",
    "A page of devices has a limited number of them, searched and ordered by the service, and names the range of log time that "
    "it covers. The newest records are read once for all pages and clients of 20 s, never the whole log.",
    promise="no-client-can-exhaust-a-service",
)
def test_a_stream_of_many_devices_is_read_once_for_all_pages(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    many = 100_000
    read: list[int] = []

    def newest(topic: str, records_max: int, *_: Any, **more: Any) -> NewestRecords:
        read.append(records_max)
        count = min(many, records_max)
        return newest_of([(0, at, NOW_MS + at, value(f"T{at:06d}")) for at in range(many - count, many)])

    api.log.ranges = {"turbines": LogRange({0: 0}, {0: 10 * many})}
    letters = [StoredDeadLetter(0, NOW_MS, {"stream": "turbines", "partition": "0", "offset": "42"}, b"")]
    letters.append(StoredDeadLetter(1, NOW_MS, {"stream": "others", "partition": "0", "offset": "43"}, b""))
    api.log.letters = [StoredDeadLetter(one.offset, 2 * NOW_MS, one.headers, one.value) for one in letters]
    monkeypatch.setattr(api.log, "newest_records", newest)
    first = api.ask("GET", "/v1/streams/turbines/devices").json()
    assert [first[name] for name in ("records", "devices", "matches")] == [many, many, many]
    assert (len(first["page"]), first["page"][0]["device"], first["page"][0]["last_ms"]) == (100, "T000000", NOW_MS)
    assert (first["is_complete"], first["from_ms"]) == (True, NOW_MS)
    assert api.ask("GET", first["next"]).json()["page"][0]["device"] == "T000100"
    some = api.ask("GET", "/v1/streams/turbines/devices?search=t00009&order=records&limit=3").json()
    assert (some["matches"], [one["device"] for one in some["page"]]) == (10, ["T000090", "T000091", "T000092"])
    bad = api.ask("GET", "/v1/streams/turbines/devices?order=errors&limit=2").json()["page"]
    assert (bad[0]["partition"], bad[0]["offset"], bad[0]["rejected_job"], bad[0]["rejected_reason"]) == (
        0,
        42,
        "power",
        "",
    )
    assert [(one["device"], one["rejected"]) for one in bad] == [("T000042", 1), ("T000000", 0)]
    assert read == [1_000, many], "one sample, and the records once"
    assert api.ask("GET", "/v1/streams/turbines/devices?limit=1001").status_code == 422
    assert api.ask("GET", "/v1/streams/nothing/devices").status_code == 404


def test_large_records_are_read_in_a_smaller_number(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, Sequence[str]]] = []

    def newest(topic: str, records_max: int, bytes_max: int, **named: Any) -> NewestRecords:
        read.append((records_max, named.get("headers_beside", ())))
        return newest_of([(0, 2, NOW_MS, b"x" * 10_000), (1, 41, NOW_MS + 5, b"x" * 10_000)])

    now = [100.0]
    monkeypatch.setattr(api.log, "newest_records", newest)
    devices = Devices(api.ledger, api.log, run_here, lambda: now[0])
    found = devices.of("turbines")
    assert read == [(1_000, ()), ((24 << 20) // 10_000, [RECORD_KEY, HEADER_SOURCE])]
    assert (found.is_complete, found.from_ms, found.records) == (False, NOW_MS + 5, 2)
    devices.of("turbines")
    assert len(read) == 2
    now[0] += KEPT_S
    devices.of("turbines")
    assert len(read) == 4


def test_an_empty_stream_has_no_device(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.log, "newest_records", lambda *_, **__: NewestRecords())
    found = api.ask("GET", "/v1/streams/turbines/devices").json()
    assert (found["page"], found["from_ms"], found["is_complete"]) == ([], None, True)
