"""Windows whose results late records revise, against a plain computation: whatever the slices, the last document of each window
holds all records that came in time for it, and no two documents of it say the same; restarts change nothing."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.stream import StreamSpec
from strandline.processing.desk.desk import Desk, DeskLetter, DeskResult, Outcome
from strandline.processing.desk.records import DeskRecords
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model import PipelineSpec
from tests.support.examples import examples

STREAM = StreamSpec.from_document(
    {
        "stream": "turbines",
        "format": "json",
        "partitions": 2,
        "schema": {"turbine": "string", "ts": {"type": "timestamp", "unit": "ms"}, "power": "double"},
        "key": "turbine",
        "retention": "7d",
    }
)
SHAPES: list[tuple[dict[str, Any], int, int]] = [
    ({"tumbling": "10s"}, 10_000, 10_000),
    ({"tumbling": "15s", "offset": "7s"}, 15_000, 15_000),
    ({"sliding": {"size": "20s", "every": "5s"}}, 20_000, 5_000),
    ({"sliding": {"size": "25s", "every": "10s"}}, 25_000, 10_000),
]


class Record(NamedTuple):
    partition: int
    turbine: str
    ts_ms: int
    power: float


class Case(NamedTuple):
    shape: dict[str, Any]
    size_ms: int
    every_ms: int
    delay_ms: int
    revise_ms: int
    by: list[str]
    records: list[Record]

    @property
    def pipeline(self) -> CheckedPipeline:
        return check(PipelineSpec.from_document(self.document), STREAM)

    @property
    def document(self) -> dict[str, Any]:
        aggregate = {"n": "count(*)", "power": "sum(power)", "first": "first(power)", "most": "max(power)"}
        return {
            "pipeline": "health",
            "input": {"stream": "turbines"},
            "event_time": {"field": "ts", "delay": f"{self.delay_ms}ms", "idle_timeout": None},
            "late": {"revise": f"{self.revise_ms}ms"},
            "steps": [
                {"where": "power < 900"},
                {
                    "window": {"name": "some", **self.shape, "by": self.by, "aggregate": aggregate},
                    "emit": [{"elasticsearch": "some"}],
                },
            ],
        }


def a_case(seed: int) -> Case:
    random = Random(seed)
    shape, size_ms, every_ms = random.choice(SHAPES)
    partitions = random.choice([1, 2])
    now_ms, records = 0, list[Record]()
    for _ in range(random.choice([3, 12, 40])):
        now_ms += random.choice([0, 100, 1_000, 9_000, 30_000])
        back_ms = random.choice([0, 0, 500, 7_000, 25_000, 60_000, 200_000])
        at_ms = max(0, now_ms - back_ms)
        power = random.choice([0.1, 0.2, 1e16, -1e16, 3.5, 1000.0])
        records.append(Record(random.randrange(partitions), random.choice("ab"), at_ms, power))
    revise_ms = random.choice([1, 5_000, 40_000, 300_000])
    return Case(
        shape, size_ms, every_ms, random.choice([0, 4_000]), revise_ms, random.choice([["turbine"], []]), records
    )


def at_the_desk(
    case: Case, slice_records: int | None, edges: Sequence[int] = (), *, restarts: bool = False
) -> list[Outcome]:
    """`edges`: where the records are cut into pieces, between which the desk may restart."""
    desk = Desk(case.pipeline, slice_records, restarts=restarts)
    found: list[Outcome] = []
    for first, end in pairwise([0, *edges, len(case.records)]):
        if first and restarts:
            desk.restart()
        part = case.records[first:end]
        lines = [json.dumps({"turbine": one.turbine, "ts": one.ts_ms, "power": one.power}).encode() for one in part]
        found += desk.feed(DeskRecords(lines, [one.partition for one in part]))
    return [*found, *desk.drain()]


def expected(case: Case) -> tuple[dict[tuple[Any, ...], dict[str, Any]], int]:
    """(end, key) -> the last document; and how many records are left out as late. Sums are left folds by partition."""
    reached: dict[int, int] = {}
    watermark_ms: int | None = None
    held: dict[tuple[Any, ...], dict[int, list[tuple[Record, bool]]]] = defaultdict(lambda: defaultdict(list))
    left_out = 0
    for one in case.records:
        in_force = watermark_ms
        if one.partition in reached:
            new_ms = min(reached.values()) - case.delay_ms
            in_force = new_ms if in_force is None else max(in_force, new_ms)
        if in_force is not None and one.ts_ms < in_force - case.revise_ms:
            left_out += 1
            continue
        reached[one.partition] = max(one.ts_ms, reached.get(one.partition, one.ts_ms))
        after_ms = min(reached.values()) - case.delay_ms
        watermark_ms = after_ms if in_force is None else max(in_force, after_ms)
        if one.power >= 900:
            continue
        is_late = in_force is not None and one.ts_ms < in_force
        offset_ms = 7_000 if "offset" in case.shape else 0
        start_ms = (one.ts_ms - offset_ms) // case.every_ms * case.every_ms + offset_ms
        while start_ms + case.size_ms > one.ts_ms:
            key = tuple(getattr(one, name) for name in case.by)
            held[(start_ms + case.size_ms, *key)][one.partition].append((one, is_late))
            start_ms -= case.every_ms
    found = {}
    for window, by_partition in held.items():
        rows = [row for partition in sorted(by_partition) for row in by_partition[partition]]
        found[window] = {
            "n": len(rows),
            "most": max(one.power for one, _ in rows),
            "revision": sum(is_late for _, is_late in rows),
        }
    return found, left_out


def last_documents(outcomes: list[Outcome]) -> dict[str, dict[str, Any]]:
    """Id -> the last document, without the number of its slice."""
    found = {}
    for one in outcomes:
        if isinstance(one, DeskResult):
            document = json.loads(one.document.source)
            del document["strandline"]
            found[one.document.id] = document
    return found


def by_window(documents: dict[str, dict[str, Any]], case: Case) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {
        (round(datetime.fromisoformat(one["@timestamp"]).timestamp() * 1000), *(one[name] for name in case.by)): {
            name: one[name] for name in ("n", "most", "revision")
        }
        for one in documents.values()
    }


@examples(40)
@given(st.integers(0, 10**9))
def test_the_last_revision_holds_all_records_whatever_the_slices(seed: int) -> None:
    case = a_case(seed)
    random = Random(seed)
    wanted, left_out = expected(case)
    whole = at_the_desk(case, None)
    last = last_documents(whole)
    assert by_window(last, case) == wanted
    assert sum(isinstance(one, DeskLetter) and one.reason == "late" for one in whole) == left_out
    slices = random.choice([1, 2, 5])
    cut = at_the_desk(case, slices)
    assert last_documents(cut) == last, "to the last bit"
    revisions: dict[str, list[int]] = defaultdict(list)
    for one in cut:
        if isinstance(one, DeskResult):
            revisions[one.document.id].append(json.loads(one.document.source)["revision"])
    assert all(sorted(set(one)) == one for one in revisions.values()), (
        "each document of a window holds more late records"
    )
    edges = sorted(random.sample(range(1, len(case.records)), 2))
    restarted = at_the_desk(case, slices, edges, restarts=True)
    assert restarted == at_the_desk(case, slices, edges), "each revision, to the last bit"
    assert last_documents(restarted) == last
