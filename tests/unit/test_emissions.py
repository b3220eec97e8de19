"""A job reads results of another job together with a stream: where its slices are cut, and what holds records back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from strandline.ledger.ledger import Ledger
from strandline.ledger.states import EventTimeRule, SliceKind, StageSink
from strandline.processing.audit import event_times
from strandline.processing.kinds.cumulative.shape import CumulativeShape
from strandline.processing.kinds.cumulative_days.shape import CumulativeDayShape
from strandline.processing.kinds.days.shape import DayShape
from strandline.processing.kinds.join.shape import JoinShape, SameWindowShape
from strandline.processing.kinds.session.shape import SessionShape
from strandline.processing.pipelines.event_time import WindowShape
from strandline.processing.pipelines.result_streams import former_emitter_of, lagging_readers
from strandline.processing.slices.emissions import Emitter
from strandline.processing.slices.planner import InputStream, PlannerSettings, SlicePlanner
from strandline.processing.slices.silence import SilenceMeter
from strandline.processing.slices.watermark import (
    accepted_in_after,
    accepted_partitions,
    closes_after,
    greatest,
    watermark_by,
)
from tests.support.ledgers import a_checkpoint, a_slice
from tests.support.one_by_one import OneByOne

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
READER = {
    "pipeline": "j",
    "input": {"stream": "results"},
    "event_time": {"field": "window_start", "delay": "0s"},
    "steps": [
        {
            "window": {"name": "w", "tumbling": "10s", "by": ["k"], "aggregate": {"n": "sum(n)"}},
            "emit": [{"elasticsearch": "sums"}],
        }
    ],
}
RULE = EventTimeRule(
    0,
    None,
    by_stream=(("raw", EventTimeRule(0, None)), ("results", EventTimeRule(0, None, watermark="emissions"))),
)


class TwoLogs(OneByOne):
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

    def not_writable(self, stream: str) -> set[int]:
        return set()

    def newest_log_time(self, stream: str) -> int:
        return max((log_ms for log_ms, _ in self.records[stream]), default=0)

    def offsets_at(self, stream: str, log_time_ms: int, ends: dict[int, int]) -> dict[int, int]:
        found = [at for at, (log_ms, _) in enumerate(self.records[stream]) if log_ms >= log_time_ms]
        return {0: min([*found, ends[0]])}


class Lab:
    """The job that emits, whose checkpoints are written by hand, and the one that reads its results and another stream."""

    def __init__(self, path: Path, field: str = "window_end", rows_max: int = 1_000) -> None:
        self.ledger = Ledger.open(f"sqlite:///{path}/ledger.sqlite")
        for name in ("raw", "results"):
            self.ledger.put_stream(name, {**STREAM, "stream": name})
        self.ledger.submit_job("tens", "", EMITTER, [StageSink("stream", "results", "w")])
        self.ledger.submit_job("j", "", READER)
        self.emitter, self.run = self.ledger.begin_run("tens", 1), self.ledger.begin_run("j", 1)
        self.log, self.number, self.field, self.rows_max = TwoLogs(), 0, field, rows_max
        settings = PlannerSettings(
            job="j", version=1, epoch=self.run.epoch, inputs=(InputStream("raw"), InputStream("results")), rows_max=rows_max,
            rule=RULE, windows=(SHAPE,), emitters=(Emitter("results", "tens", field),),
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
            latest_ms: dict[str, dict[int, int]] = {}
            reached = {stream: dict(one) for stream, one in row.reached.items()}
            for stream in row.offsets:
                records = self.log.records[stream]
                first, end = row.offsets_first[stream].get(0, 0), row.offsets[stream][0]
                events = [event_ms for _, event_ms in records[first:end]]
                late += [(stream, one) for one in events if row.watermark_ms is not None and one < row.watermark_ms]
                if events:
                    latest_ms[stream] = {0: max(events)}
                    reached.setdefault(stream, {})[0] = max([*events, reached.get(stream, {}).get(0, 0)])
            assert not late, f"{late} of slice {row.number} are below {row.watermark_ms}"
            came = accepted_partitions(row, latest_ms)
            before = self.ledger.last_checkpoint("j")
            logs = [log_ms for records in self.log.records.values() for log_ms, _ in records]
            latest = greatest(*(ms for one in reached.values() for ms in one.values()))
            self.ledger.commit_checkpoint(
                a_checkpoint(
                    row.number, self.run.epoch, "j", result_offsets={}, emitted={},
                    closes_ms=closes_after(row, reached, came), accepted_in=accepted_in_after(before, came, row.number),
                    reached=reached, latest_event_ms=latest, latest_log_ms=max(logs, default=0),
                )
            )  # fmt: skip


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    found = Lab(tmp_path)
    yield found
    found.ledger.close()


@pytest.mark.guarantee(
    "G608",
    "A job that reads another job's results together with streams reads complete emissions, and none is late. Records "
    "of the other streams wait until that job has closed their windows, also in a job that lags, and no longer.",
    promise="no-record-is-late-without-cause",
)
@pytest.mark.guarantee(
    "G612",
    "A job that reads another job's results together with a stream joins each record with the right results through a "
    "kill, a pause of the other job, and a backfill. Its audit is clean.",
    promise="kills-and-restarts-change-no-result",
)
def test_records_wait_for_the_job_that_emits_and_none_of_its_results_is_late(lab: Lab) -> None:
    lab.read(1, *range(1_000, 60_000, 1_000))
    assert [row.watermark_ms for row in lab.slices()] == [None]
    assert lab.closes_ms() is None  # its first result is still to come
    lab.emit(2, 20_000, 10_000, 20_000)
    (first, *idle) = lab.slices()
    assert first.offsets["results"] == {0: 2} and {row.kind for row in idle} == {SliceKind.IDLE}
    # The next result ends at 30 s at the earliest, so all before that is known.
    assert lab.closes_ms() == 30_000


@pytest.mark.guarantee("G608")
def test_a_job_that_emits_nothing_holds_nobody_back_as_far_as_it_has_come(lab: Lab) -> None:
    lab.read(1, *range(1_000, 60_000, 1_000))
    lab.confirm(40_000)
    list(lab.slices())
    assert lab.closes_ms() == 50_000
    lab.emit(2, 45_000, 50_000, confirmed=False)
    assert list(lab.slices()) == []  # half an emission
    lab.confirm(50_000)
    assert next(lab.slices()).offsets["results"] == {0: 1}


@pytest.mark.guarantee("G608")
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


WITHOUT_STREAM = {**EMITTER, "steps": [{**EMITTER["steps"][0], "emit": [{"elasticsearch": "tens"}]}]}  # type: ignore[index]


class LaggingLab(Lab):
    """A job that reads only the stream of results. It has read nothing when the emitter's new version leaves the stream out."""

    def __init__(self, path: Path, rows_max: int) -> None:
        super().__init__(path, "window_start", rows_max)

    def reader(self) -> SlicePlanner:
        """Return the planner of a run of the reader that starts now."""
        job = former_emitter_of(self.ledger, "results")
        emitters = () if job is None else (Emitter("results", job, "window_start", is_former=True),)
        settings = PlannerSettings(
            job="j", version=1, epoch=self.run.epoch, inputs=(InputStream("results"),), rows_max=self.rows_max,
            rule=EventTimeRule(0, None), windows=(SHAPE,), emitters=emitters,
        )  # fmt: skip
        index: Any = self.log
        return SlicePlanner(settings, self.ledger, index, silence=SilenceMeter(), filling_ms=0)


@pytest.mark.guarantee(
    "G771",
    "A new version of a pipeline may remove a stream of results. A job that lags in that stream still reads complete "
    "emissions, and none of its results is late. Until then, the emitter's checkpoints stay, and the emitter can't be "
    "reset or deleted.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
@pytest.mark.parametrize("rows_max", [1, 3, 1_000])
def test_results_of_a_former_emitter_are_read_by_whole_emissions_and_none_is_late(
    tmp_path: Path, rows_max: int
) -> None:
    """Windows of an emission come in any order, so that a cut within it would make the earlier windows late."""
    lab = LaggingLab(tmp_path, rows_max)
    ends = []
    for emission in range(1, 6):
        at_ms = emission * 30_000
        lab.emit(at_ms, at_ms, at_ms, at_ms - 10_000, at_ms - 20_000)
        ends.append(3 * emission)
    lab.ledger.submit_job("tens", "", WITHOUT_STREAM)
    lab.confirm(180_000)
    assert former_emitter_of(lab.ledger, "results") == "tens"
    assert lagging_readers(lab.ledger, "tens") == {"results": ["j"]}
    lab.planner = lab.reader()
    cuts = [row.offsets["results"][0] for row in lab.slices() if row.kind is not SliceKind.IDLE]
    assert cuts == (ends if rows_max <= 3 else [15])
    assert lagging_readers(lab.ledger, "tens") == {}
    lab.log.records["results"] += [(200_000 + at, 200_000 + at) for at in range(5)]  # another sender's
    others = [row.offsets["results"][0] for row in lab.slices()]
    assert others and others[-1] == 20


@pytest.mark.guarantee("G771")
def test_a_former_emitter_that_has_a_slice_to_finish_is_waited_for(tmp_path: Path) -> None:
    """The version that emits to the stream finishes its slice, so a part of the emission may be in the stream."""
    lab = LaggingLab(tmp_path, 1_000)
    lab.emit(10_000, 10_000, 10_000)
    lab.ledger.plan_slice(a_slice(2, lab.emitter.epoch, "tens", offsets_first={"raw": {0: 1}}, offsets={"raw": {0: 2}}))
    lab.ledger.submit_job("tens", "", WITHOUT_STREAM)
    lab.emit(20_000, 30_000, 30_000, confirmed=False)
    lab.planner = lab.reader()
    assert [row.offsets["results"][0] for row in lab.slices()] == [1]
    lab.emit(20_001, 30_000, 20_000, confirmed=False)
    lab.ledger.commit_checkpoint(
        a_checkpoint(
            2, lab.emitter.epoch, "tens", result_offsets={"results": {0: 3}}, emitted={"w": 30_000}, closes_ms=30_000
        )
    )
    assert [row.offsets["results"][0] for row in lab.slices()] == [3]


def test_a_stream_that_a_job_emits_to_has_no_former_emitter(lab: Lab) -> None:
    lab.emit(1, 10_000, 10_000)
    assert former_emitter_of(lab.ledger, "results") is None
    assert former_emitter_of(lab.ledger, "raw") is None
    assert lagging_readers(lab.ledger, "tens") == {}


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


@pytest.mark.guarantee(
    "G609",
    "An audit computes the same watermarks from the recorded progress of the emitter, by a different implementation. "
    "If results can't be read safely with streams, the document is refused with the correct form.",
    promise="the-audit-finds-every-difference",
)
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
        theirs = event_times._watermark(
            rule, event_times._by_partition_key(reached), event_times._by_partition_key(silence), first
        )
        assert ours == theirs, (rule, reached, silence, first)
        differing += ours is not None
    assert differing > 500
