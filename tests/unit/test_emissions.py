"""How a job reads results of another one beside a stream: where its slices are cut, and what holds records back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from strandline.ledger.ledger import Ledger
from strandline.ledger.states import EventTimeRule, SliceKind
from strandline.processing.audit import event_times
from strandline.processing.pipelines.event_time import (
    CumulativeDayShape,
    CumulativeShape,
    DayShape,
    JoinShape,
    SameWindowShape,
    SessionShape,
    WindowShape,
)
from strandline.processing.slices.emissions import Emitter
from strandline.processing.slices.planner import FurtherStream, PlannerSettings, SlicePlanner
from strandline.processing.slices.silence import SilenceMeter
from strandline.processing.slices.watermark import closes_after, greatest, watermark_by
from tests.support.ledgers import a_checkpoint, a_slice

SECOND_MS, WINDOW_MS = 1_000, 10_000
SHAPE = WindowShape(WINDOW_MS, WINDOW_MS)
STREAM = {"stream": "raw", "schema": {"k": {"type": "string"}, "ts": {"type": "timestamp"}}}
EMITTER = {
    "pipeline": "tens",
    "input": {"stream": "raw"},
    "event_time": {"field": "ts", "delay": "0s"},
    "steps": [
        {
            "window": {"name": "w", "tumbling": "10s", "by": ["k"], "aggregate": {"n": "count(*)"}},
            "emit": [{"stream": "results"}],
        }
    ],
}
RULE = EventTimeRule(
    0,
    None,
    by_stream=(("raw", EventTimeRule(0, None)), ("results", EventTimeRule(0, None, watermark="emissions"))),
)


class TwoLogs:
    """Records of two streams, each with one partition, as (log time, event time)."""

    def __init__(self) -> None:
        self.records: dict[str, list[tuple[int, int]]] = {"raw": [], "results": []}

    def starts(self, stream: str) -> dict[int, int]:
        return {0: 0}

    def ends(self, stream: str) -> dict[int, int]:
        return {0: len(self.records[stream])}

    def ends_with_open(self, stream: str) -> dict[int, int]:
        return self.ends(stream)

    def partitions(self, stream: str) -> list[int]:
        return [0]

    def topic_id(self, stream: str) -> str:
        return stream

    def checksums(self, stream: str, offsets: dict[int, int]) -> dict[int, int]:
        return {p: offset for p, offset in offsets.items() if offset < len(self.records[stream])}

    def newest_log_time(self, stream: str) -> int:
        return max((log_ms for log_ms, _ in self.records[stream]), default=0)

    def offsets_at(self, stream: str, log_time_ms: int, ends: dict[int, int]) -> dict[int, int]:
        found = [at for at, (log_ms, _) in enumerate(self.records[stream]) if log_ms >= log_time_ms]
        return {0: min([*found, ends[0]])}


class Lab:
    """The job that emits, whose checkpoints are written by hand, and the one that reads what it emits beside what it reads."""

    def __init__(self, path: Path, field: str = "window_end", rows_max: int = 1_000) -> None:
        self.ledger = Ledger.open(f"sqlite:///{path}/ledger.sqlite")
        for name in ("raw", "results"):
            self.ledger.put_stream(name, {**STREAM, "stream": name})
        self.ledger.submit_job("tens", "", EMITTER)
        self.ledger.submit_job("j", "", {"pipeline": "j"})
        self.emitter, self.run = self.ledger.begin_run("tens", 1), self.ledger.begin_run("j", 1)
        self.log, self.number, self.field = TwoLogs(), 0, field
        settings = PlannerSettings(
            job="j", version=1, epoch=self.run.epoch, stream="raw", start="earliest", rows_max=rows_max, rule=RULE,
            windows=(SHAPE,), emitters=(Emitter("results", "tens", field),), further=(FurtherStream("results", "earliest"),),
        )  # fmt: skip
        index: Any = self.log
        self.planner = SlicePlanner(settings, self.ledger, index, silence=SilenceMeter(), filling_ms=0)

    def closes_ms(self) -> int | None:
        """Up to where the reader has closed windows."""
        last = self.ledger.last_checkpoint("j")
        assert last is not None
        return last.closes_ms

    def read(self, log_ms: int, *events_ms: int) -> None:
        self.log.records["raw"] += [(log_ms, event_ms) for event_ms in events_ms]

    def emit(self, log_ms: int, closes_ms: int, *ends_ms: int, confirmed: bool = True) -> None:
        """An emission of windows that end then; Kafka takes one result a millisecond."""
        back_ms = 0 if self.field == "window_end" else WINDOW_MS
        self.log.records["results"] += [(log_ms + at, end_ms - back_ms) for at, end_ms in enumerate(ends_ms)]
        if confirmed:
            self.confirm(closes_ms)

    def confirm(self, closes_ms: int) -> None:
        self.number += 1
        self.ledger.plan_slice(
            a_slice(
                self.number,
                self.emitter.epoch,
                "tens",
                offsets_first={"raw": {0: self.number - 1}},
                offsets={"raw": {0: self.number}},
            )
        )
        ends = {"results": {0: len(self.log.records["results"])}}
        emitted = {"w": SHAPE.last_end(closes_ms)}
        self.ledger.commit_checkpoint(
            a_checkpoint(
                self.number, self.emitter.epoch, "tens", result_offsets=ends, emitted=emitted, closes_ms=closes_ms
            )
        )

    def slices(self) -> Iterator[Any]:
        """Plan slices, and commit each."""
        while (row := self.planner.next_slice()) is not None:
            yield row
            late = []
            reached = {stream: dict(one) for stream, one in row.reached.items()}
            for stream, records in self.log.records.items():
                first, end = row.offsets_first[stream].get(0, 0), row.offsets[stream][0]
                events = [event_ms for _, event_ms in records[first:end]]
                late += [(stream, one) for one in events if row.watermark_ms is not None and one < row.watermark_ms]
                if events:
                    reached.setdefault(stream, {})[0] = max([*events, reached.get(stream, {}).get(0, 0)])
            assert not late, f"{late} of slice {row.number} are below {row.watermark_ms}"
            logs = [log_ms for records in self.log.records.values() for log_ms, _ in records]
            latest = greatest(*(ms for one in reached.values() for ms in one.values()))
            self.ledger.commit_checkpoint(
                a_checkpoint(
                    row.number, self.run.epoch, "j", result_offsets={}, emitted={}, closes_ms=closes_after(row, reached),
                    reached=reached, latest_event_ms=latest, latest_log_ms=max(logs, default=0),
                )
            )  # fmt: skip


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    found = Lab(tmp_path)
    yield found
    found.ledger.close()


def test_records_wait_for_the_job_that_emits_and_none_of_its_results_is_late(lab: Lab) -> None:
    lab.read(1, *range(1_000, 60_000, 1_000))
    assert [row.watermark_ms for row in lab.slices()] == [None]
    assert lab.closes_ms() is None  # its first result is still to come
    lab.emit(2, 20_000, 10_000, 20_000)
    (first, *idle) = lab.slices()
    assert first.offsets["results"] == {0: 2} and {row.kind for row in idle} == {SliceKind.IDLE}
    # The next result ends at 30 s at the earliest, so all before that is known.
    assert lab.closes_ms() == 30_000


def test_a_job_that_emits_nothing_holds_nobody_back_as_far_as_it_has_come(lab: Lab) -> None:
    lab.read(1, *range(1_000, 60_000, 1_000))
    lab.confirm(40_000)
    list(lab.slices())
    assert lab.closes_ms() == 50_000
    lab.emit(2, 45_000, 50_000, confirmed=False)
    assert list(lab.slices()) == []  # half an emission
    lab.confirm(50_000)
    assert next(lab.slices()).offsets["results"] == {0: 1}


def test_far_behind_slices_take_whole_emissions_as_far_as_log_time(tmp_path: Path) -> None:
    """Any cuts: each ends where an emission does, and no result or record is late."""
    for seed in range(2):
        random = Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        lab = Lab(folder, ["window_end", "window_start"][seed], rows_max=3 + seed)
        ends, log_ms = {0}, 1
        for second in range(1, 40):
            log_ms += random.randrange(1, 3)
            lab.read(log_ms, second * SECOND_MS)
            if second % 10 == 0:
                log_ms += random.randrange(3)
                lab.emit(
                    log_ms, second * SECOND_MS + random.randrange(9_000), *[second * SECOND_MS] * random.randrange(2, 6)
                )
                ends.add(len(lab.log.records["results"]))
            if random.random() < 0.05:
                list(lab.slices())
        cuts = list(lab.slices())
        assert {row.offsets["results"].get(0, 0) for row in cuts} <= ends
        last = lab.ledger.last_slice("j")
        assert last is not None and last.offsets == {one: {0: len(lab.log.records[one])} for one in ("raw", "results")}
        lab.ledger.close()


@pytest.mark.parametrize(
    ("shape", "after_ms", "first_ms"),
    [
        (WindowShape(60_000, 10_000), 120_000, 70_000),
        (CumulativeShape(60_000, 10_000), 70_000, 60_000),
        (SessionShape(60_000, 10_000), 100_000, 40_001),
        (JoinShape(30_000, 1, before_ms=20_000, after_ms=9_999), 100_000, 70_001),
        (SameWindowShape(10_000, 10_000, of=SHAPE), 20_000, 20_000),
        (DayShape(86_400_000, 86_400_000, zone="UTC"), 86_400_000, 86_400_000),
        (DayShape(7 * 86_400_000, 86_400_000, zone="UTC"), 10 * 86_400_000, 4 * 86_400_000),
        (CumulativeDayShape(86_400_000, 3_600_000, zone="UTC"), 90_000_000, 86_400_000),
    ],
    ids=lambda one: type(one).__name__,
)
def test_where_the_next_windows_begin_at_the_earliest(shape: WindowShape, after_ms: int, first_ms: int) -> None:
    assert shape.first_begin(after_ms) == first_ms


def test_an_audit_computes_the_same_watermarks() -> None:
    random, differing = Random(3), 0
    for _ in range(2_000):
        timeout = random.choice([None, 50])
        word = random.choice([None, random.randrange(200)])
        results = EventTimeRule(random.randrange(9), timeout, watermark="emissions", results_from_ms=word)
        raw = EventTimeRule(random.randrange(9), random.choice([None, 40]))
        rule = EventTimeRule(0, None, by_stream=(("raw", raw), ("results", results)))
        reached, silence = (
            {
                name: {p: random.randrange(1, 200) for p in range(3) if random.random() < 0.6}
                for name in ("raw", "results")
            }
            for _ in range(2)
        )
        known = {name: one for name, one in reached.items() if one}
        first = {name for name in ("raw", "results") if random.random() < 0.2}
        ours = watermark_by(rule, known, silence, first_records=first)
        theirs = event_times._watermark(rule, event_times._places(reached), event_times._places(silence), first)
        assert ours == theirs, (rule, reached, silence, first)
        differing += ours is not None
    assert differing > 500
