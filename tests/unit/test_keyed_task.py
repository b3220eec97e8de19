"""Source task and keyed task together, without Spark, Kafka or Elasticsearch: from decoded records to results."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from strandline.core.errors import BadRecord
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.states import EventTimeRule
from strandline.processing.emission import keyed_task
from strandline.processing.emission.dead_letters import DeadLetter
from strandline.processing.emission.keyed_task import BucketOutcome, DeadLetterTarget, KeyedTask
from strandline.processing.emission.result_shapes import letter_shape
from strandline.processing.emission.stage_emission import StageEmission
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.source.decoding import DecodedChunk, decoder_of, task_config
from strandline.processing.source.slice_rows import SliceWork, add_facts, bucket_keys, decode_work, encode
from strandline.processing.source.source_config import TaskConfig
from strandline.processing.source.source_task import SourceTask
from strandline.results.writer import WriteReport
from tests.support.ledgers import a_slice

STREAM = StreamSpec.from_document(
    {
        "stream": "farm",
        "schema": {
            "device": "string",
            "ts": {"type": "timestamp", "unit": "ms"},
            "power": {"type": "double", "min": 0},
            "rated": "double",
        },
    }
)
PIPELINE = check(
    PipelineSpec.from_document(
        {
            "pipeline": "power",
            "input": {"stream": "farm"},
            "event_time": {"field": "ts", "delay": "0s", "max_ahead": "1h", "idle_timeout": None},
            "steps": [
                {"derive": {"load": "power / rated"}},
                {"where": "load < 10"},
                {
                    "window": {
                        "name": "tens",
                        "tumbling": "10s",
                        "by": ["device"],
                        "aggregate": {"n": "count(*)", "load": "avg(load)"},
                    },
                    "emit": [{"elasticsearch": "tens"}],
                },
                {
                    "window": {"name": "minute", "tumbling": "1m", "by": ["device"], "aggregate": {"n": "sum(n)"}},
                    "emit": [{"elasticsearch": "minute"}],
                },
            ],
        }
    ),
    STREAM,
)


@dataclass
class KeptRows:
    """Keeps the rows that it is to write."""

    rows: list[dict[str, object]] = field(default_factory=list)

    def prepare(self, next_end_ms: int | None) -> None:
        raise AssertionError("a worker writes")

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        before = len(self.rows)
        for batch in batches:
            self.rows += [
                {"end": row.pop("@window_end_ms") / 1000, **row} | {"@problem": None}
                for row in batch.drop_columns(["@window_start_ms"]).to_pylist()
            ]
        return WriteReport(created=len(self.rows) - before)


class KeptLetters:
    """Double of the writer of dead letters."""

    def __init__(self) -> None:
        self.written: list[DeadLetter] = []

    def write(self, letters: Iterable[DeadLetter], _before: object) -> int:
        before = len(self.written)
        self.written += letters
        return len(self.written) - before


class Engine:
    """One job over some buckets; keeps the states."""

    pipeline = PIPELINE

    def __init__(self, buckets: int, monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
        self.source: TaskConfig = replace(task_config(self.pipeline, "nowhere", bucket_keys(buckets, 2)), **changes)
        self.written = {stage.name: KeptRows() for stage in self.pipeline.stages}
        self.letters = KeptLetters()
        monkeypatch.setattr(keyed_task.DeadLetterTarget, "writer", lambda _self, _bucket: self.letters)
        emissions = tuple(
            StageEmission(
                (self.written[stage.name],),
                (),
                letter_shape(self.pipeline, stage, 1),
                "power",
                stage.name,
                1,
                None,
                "",
                "",
                0,
            )
            for stage in self.pipeline.stages
        )
        self.keyed = KeyedTask(
            self.source.stages,
            self.source.bucket_keys,
            emissions,
            DeadLetterTarget("nowhere", "none", "power", 1, 0),
        )
        self.states: list[bytes | None] = [None] * buckets

    def run(self, chunks: list[DecodedChunk], work: SliceWork) -> list[BucketOutcome]:
        """One batch, each partition read by a task of its own, rows in any order."""
        found = defaultdict(list)
        tasks = sorted({chunk.partition for chunk in chunks}) or [0]
        for number, partition in enumerate(tasks):
            rows = SourceTask(self.source).rows(
                [chunk for chunk in chunks if chunk.partition == partition],
                is_new=work.emits,
                work=encode(work) if number == 0 else None,
            )
            for key, *row in rows:
                found[key].append(tuple(row))
        outcomes, parts = [], []
        for bucket, key in enumerate(self.source.bucket_keys):
            rows_of_bucket = found[key]
            random.Random(work.number).shuffle(rows_of_bucket)
            done = self.keyed.process(bucket, rows_of_bucket, self.states[bucket])
            self.states[bucket] = done.state
            outcomes.append(done.outcome)
            parts += done.parts
        for bucket, stage in sorted({(target, stage) for target, stage, _ in parts}, reverse=True):
            of_bucket = [part for target, of, part in reversed(parts) if (target, of) == (bucket, stage)]
            outcomes.append(self.keyed.emit_merged(bucket, stage, of_bucket, work))
        return outcomes

    def digest(self) -> dict[str, list[str]]:
        return {
            stage: sorted(json.dumps(row, sort_keys=True) for row in kept.rows) for stage, kept in self.written.items()
        }


BRANCHES = check(
    PipelineSpec.from_document(
        PIPELINE.spec.as_document()
        | {
            "steps": [
                {"derive": {"load": "power / rated"}, "name": "loaded"},
                {
                    "window": {"name": "tens", "tumbling": "10s", "by": ["device"], "aggregate": {"load": "sum(load)"}},
                    "emit": [{"elasticsearch": "tens"}],
                },
                {"where": "10 / (load - 1) < 20"},
                {"window": {"name": "all", "tumbling": "1m", "by": [], "aggregate": {"load": "sum(load)"}}},
                {"emit": [{"elasticsearch": "all"}]},
                {
                    "window": {"name": "whole", "tumbling": "20s", "by": [], "aggregate": {"n": "count(*)"}},
                    "emit": [{"elasticsearch": "whole"}],
                    "from": "loaded",
                },
                {"derive": {"inverse": "1 / power"}, "from": "farm"},
                {
                    "window": {
                        "name": "inverse",
                        "tumbling": "20s",
                        "by": ["device"],
                        "aggregate": {"x": "sum(inverse)"},
                    },
                    "emit": [{"elasticsearch": "inverse"}],
                },
            ]
        }
    ),
    STREAM,
)


class EngineOfBranches(Engine):
    """The engine with branches: by device, and two that regroup all."""

    pipeline = BRANCHES


def chunk_of(partition: int, first: int, values: list[bytes | None], watermark_ms: int | None = None) -> DecodedChunk:
    times = [1_000_000] * len(values)
    decoded = decoder_of(task_config(PIPELINE, "nowhere", (0,)).decoding.inputs[0]).decode(
        values, times, watermark_ms, PIPELINE.event_time_rule.max_ahead_ms
    )
    return DecodedChunk("farm", partition, range(first, first + len(values)), times, decoded, values.__getitem__)


def record(ts_ms: int, power: float = 1.0, rated: float = 2.0, device: str = "d1") -> bytes:
    return json.dumps({"device": device, "ts": ts_ms, "power": power, "rated": rated}).encode()


def work_of(number: int, from_ms: int | None, to_ms: int | None, *, emits: bool = True) -> SliceWork:
    return SliceWork(number, emits, from_ms, to_ms, {}, {})


def made_up(count: int, partitions: int) -> dict[int, list[bytes | None]]:
    chance = random.Random(7)
    lines: dict[int, list[bytes | None]] = {partition: [] for partition in range(partitions)}
    for number in range(count):
        values = (chance.uniform(0, 1e6), chance.uniform(1, 3e5), f"d{chance.randrange(9)}")
        line = record(number * 20 + chance.randrange(500), *values)
        lines[chance.randrange(partitions)].append(line if chance.random() > 0.01 else b"{")
    return lines


@pytest.mark.guarantee(
    "G75",
    "The same slices give the same documents with any number of shuffle partitions and any restarts, to the last "
    "digit if the order of records doesn't matter. The audit is clean whatever the size of the slices.",
    promise="results-depend-only-on-the-log",
)
@pytest.mark.guarantee("G390")
@pytest.mark.parametrize("kind", [Engine, EngineOfBranches])
def test_the_same_records_give_the_same_bits_in_any_slices_and_buckets(
    kind: type[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = made_up(8_000, 3)
    digests = []
    for buckets, slices in ((1, 1), (2, 5), (5, 40)):
        engine = kind(buckets, monkeypatch)
        closed_ms: int | None = None
        for number in range(1, slices + 1):
            chunks = []
            for partition, values in lines.items():
                first, end = (len(values) * (number - 1 + at) // slices for at in (0, 1))
                middle = (first + end) // 2
                parts = ((first, middle), (middle, end))
                chunks += [chunk_of(partition, low, values[low:high]) for low, high in parts if low < high]
            to_ms = 160_000 * (number - 1) // slices if number < slices else 400_000
            engine.run(chunks, work_of(number, closed_ms, to_ms))
            closed_ms = to_ms
        digests.append(engine.digest())
    assert digests[0] == digests[1] == digests[2]
    assert len(digests[0]["tens"]) > 100
    assert all(digests[0].values())


@pytest.mark.guarantee(
    "G392",
    "A record or result that fails in some branches has one dead letter, and the other branches use it as if it "
    "hadn't failed. The dead letter names the stages that have the record, and a requeue skips it unless "
    "requested.",
    promise="each-rejected-record-is-one-dead-letter",
)
def test_a_record_that_fails_in_a_branch_has_one_dead_letter_and_is_in_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One is unusable for `load`, which all branches except the last need; one for the last branch alone; one for both."""
    engine = EngineOfBranches(2, monkeypatch)
    chunks = [
        chunk_of(0, 0, [record(1_000), record(2_000, rated=0.0), record(3_000, power=0.0), record(4_000, 0.0, 0.0)])
    ]
    outcomes = engine.run(chunks, work_of(1, None, 60_000))
    facts = add_facts(one for outcome in outcomes for one in outcome.facts)
    assert (facts.records, facts.rejected) == (4, {"expression": 3})
    assert sorted((one.identity, dict(one.headers)["step"].decode()) for one in engine.letters.written) == [
        ("farm/0/1", "steps[0].derive.load"),
        ("farm/0/2", "steps[6].derive.inverse"),
        ("farm/0/3", "steps[0].derive.load"),
    ]
    taken = {one.identity: dict(one.headers).get("taken-by") for one in engine.letters.written}
    assert taken == {"farm/0/1": b"inverse", "farm/0/2": b"tens,whole", "farm/0/3": None}
    assert [row["n"] for row in engine.written["whole"].rows] == [2]
    assert [row["x"] for row in engine.written["inverse"].rows] == [2.0]


@pytest.mark.parametrize("buckets", [1, 3])
def test_a_new_slice_closes_in_every_bucket_what_its_own_records_complete(
    buckets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Event time reached 21 s in one partition and 15 s in the other, and the delay is half a second.

    The first ten seconds of every device are final, in buckets without such a record too.
    """
    engine = Engine(buckets, monkeypatch)
    row = a_slice(1, offsets={"farm": {0: 6, 1: 1}}, watermark_ms=None, rule=EventTimeRule(500, None), reached={})
    work = SliceWork(1, True, None, None, {}, {}, row)
    assert decode_work(encode(work)) == work
    devices = [chunk_of(0, 0, [record(1_000, device=f"d{number}") for number in range(5)])]
    engine.run([*devices, chunk_of(0, 5, [record(21_000)]), chunk_of(1, 0, [record(15_000)])], work)
    ends = [json.loads(one)["end"] for one in engine.digest()["tens"]]
    assert ends == [10.0] * 5


def test_facts_count_each_record_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(2, monkeypatch)
    good, bad = record(5_000), b"broken"
    late, ahead, zero = record(900), record(9_000_000), record(6_000, rated=0.0)
    chunks = [chunk_of(0, 10, [good, bad, late], 1_000), chunk_of(1, 0, [ahead, zero, None])]
    outcomes = engine.run(chunks, work_of(1, None, None))
    facts = add_facts(one for outcome in outcomes for one in outcome.facts)
    assert facts.records == 6
    assert facts.rejected == {"decode": 2, "expression": 1, "future_event": 1, "late": 1}
    assert facts.latest_ms == {"farm": {0: 5_000, 1: 6_000}}
    assert sum(outcome.letters for outcome in outcomes) == 5
    assert sorted(
        (one.identity, one.value, dict(one.headers)["reason"].decode()) for one in engine.letters.written
    ) == [
        ("farm/0/11", bad, "decode"),
        ("farm/0/12", late, "late"),
        ("farm/1/0", ahead, "future_event"),
        ("farm/1/1", zero, "expression"),
        ("farm/1/2", None, "decode"),
    ]


def test_late_records_are_counted_and_dropped_where_the_pipeline_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(1, monkeypatch, late_is_dropped=True)
    (outcome,) = engine.run([chunk_of(0, 0, [record(900), b"broken"], 1_000)], work_of(1, None, None))
    assert outcome.facts[0].rejected == {"late": 1, "decode": 1}
    assert [one.identity for one in engine.letters.written] == ["farm/0/1"]


def test_a_replay_rebuilds_state_and_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slice 1 is replayed, slice 2 is new: the window that both fill is whole, and what slice 1 closed isn't emitted again."""
    engine = Engine(1, monkeypatch)
    engine.run([chunk_of(0, 0, [record(1_000), record(11_000), b"broken"])], work_of(1, None, 10_000, emits=False))
    assert engine.digest() == {"tens": [], "minute": []}
    assert engine.letters.written == []
    engine.run([chunk_of(0, 3, [record(12_000)])], work_of(2, 10_000, 20_000))
    assert [(row["end"], row["n"]) for row in engine.written["tens"].rows] == [(20.0, 2)]


@pytest.mark.guarantee(
    "G8",
    "With `on_error: crash`, the job stops at the first bad record, names it, and emits and commits nothing of its "
    "slice.",
    promise="each-rejected-record-is-one-dead-letter",
)
def test_a_bad_record_of_a_new_slice_ends_a_run_that_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(1, monkeypatch, crashes=True)
    engine.run([chunk_of(0, 0, [record(900), b"broken"], 1_000)], work_of(1, None, None, emits=False))
    with pytest.raises(BadRecord, match="decode at decode: stream farm, partition 0, offset 3: "):
        engine.run([chunk_of(0, 2, [record(900), b"broken"], 1_000)], work_of(2, None, None))
    with pytest.raises(
        BadRecord, match=r"expression at steps\[0\]\.derive\.load: stream farm, partition 0, offset 2: "
    ):
        engine.run([chunk_of(0, 2, [record(900, rated=0.0)])], work_of(2, None, None))


@pytest.mark.parametrize(("buckets", "partitions"), [(1, 1), (2, 2), (5, 3), (16, 16), (3, 4)])
def test_buckets_have_different_keys(buckets: int, partitions: int) -> None:
    assert len(set(bucket_keys(buckets, partitions))) == buckets
