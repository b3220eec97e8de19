"""A restart after a pause, in which silence or a drain has closed the windows, reads only what still counts.

It changes nothing. The test runs at the desk, where a start is planned with the same arithmetic.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.streams.stream import StreamSpec
from strandline.processing.desk.desk import Desk, Outcome
from strandline.processing.desk.records import DeskRecords
from strandline.processing.pipelines import event_time
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.event_time import WindowShape, open_until
from strandline.processing.pipelines.kind_registry import WINDOW_KEYWORDS
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from tests.support.examples import examples

STREAM = StreamSpec.from_document(
    {
        "stream": "pumps",
        "partitions": 2,
        "format": "json",
        "schema": {"pump": "string", "id": "string", "ts": {"type": "timestamp", "unit": "ms"}, "flow": "double"},
        "key": "pump",
        "retention": "7d",
    }
)
SIDES: list[dict[str, Any]] = [
    {"where": "id != 'r'", "name": "lefts"},
    {"where": "id != 'l'", "name": "rights", "from": "pumps"},
]
REPEATS = {"dedupe": {"by": ["pump", "id"], "within": "6s"}}


def windows(name: str, *, by: list[str] | None = None, n: str = "count(*)", **shape: Any) -> dict[str, Any]:
    window = {"name": name, **shape, "by": ["pump"] if by is None else by, "aggregate": {"n": n}}
    return {"window": window, "emit": [{"elasticsearch": name}]}


def joined(**near: Any) -> dict[str, Any]:
    join = {"name": "met", "left": "lefts", "right": "rights", "on": ["pump"], **near}
    return {
        "join": {"add": {"l_flow": "left.flow", "r_flow": "right.flow"}, **join},
        "emit": [{"elasticsearch": "met"}],
    }


SESSION = {"session": {"gap": "3s", "max": "10s"}}
STEPS: dict[str, list[dict[str, Any]]] = {
    "tumbling": [windows("some", tumbling="4s")],
    "sliding": [windows("some", sliding={"size": "6s", "every": "2s"})],
    "cumulative": [windows("some", cumulative={"size": "8s", "step": "2s"})],
    "count": [windows("some", count={"size": 3, "max": "10s"})],
    "previous": [windows("some", previous={"within": "4s"}, n="increase(flow)")],
    "increases": [windows("some", tumbling="4s", n="increase(flow, '5s')")],
    "session": [windows("some", **SESSION)],
    "windows of sessions": [windows("some", **SESSION), windows("more", tumbling="20s", n="sum(n)")],
    "sessions of windows": [
        windows("some", tumbling="2s"),
        windows("more", session={"gap": "5s", "max": "20s"}, n="sum(n)"),
    ],
    "join": [*SIDES, joined(type="full", within={"before": "3s", "after": "2s"}, max_rows=3)],
    "latest": [*SIDES, joined(type="left", within={"before": "3s"}, latest=True)],
    "join of windows": [*SIDES, joined(type="full", tumbling="4s", max_rows=3)],
    "sessions of a join": [
        *SIDES,
        joined(type="full", within={"before": "1s", "after": "2s"}, max_rows=5),
        windows("more", **SESSION),
    ],
    "dedupe": [REPEATS, windows("some", tumbling="4s")],
    "dedupe before sessions": [REPEATS, windows("some", **SESSION)],
    "dedupe of records": [REPEATS, {"emit": [{"elasticsearch": "all"}], "name": "all"}],
    "revised": [windows("some", tumbling="4s")],
    "revised sliding": [windows("some", sliding={"size": "6s", "every": "2s"})],
}
OUTLIVES = {name for name in STEPS if name.startswith(("dedupe", "revised", "previous", "increases"))}
"""Where something counts longer than windows are open."""


def test_each_kind_of_windows_is_here() -> None:
    found = {field for steps in STEPS.values() for step in steps for field in step.get("window", {})}
    assert {*WINDOW_KEYWORDS} <= found


def pipeline_of(name: str) -> CheckedPipeline:
    document = {
        "pipeline": "health",
        "input": {"stream": "pumps"},
        "event_time": {"field": "ts", "delay": "1s", "idle_timeout": "2s", "max_ahead": None},
        "steps": STEPS[name],
        **({"late": {"revise": "5s"}} if name.startswith("revised") else {}),
    }
    return check(PipelineSpec.from_document(document), STREAM)


def some_records(random: Random, after_ms: int) -> Iterator[bytes]:
    """About where event time has come to: some just too late, most just in time."""
    at_ms = after_ms + random.choice([0, 0, 1, 1_000, 5_000, -1, -2_000])
    for _ in range(random.choice([1, 1, 3, 12])):
        record = {
            "pump": random.choice("aab"),
            "id": random.choice("lrb"),
            "ts": max(0, at_ms),
            "flow": random.random(),
        }
        yield json.dumps(record).encode()
        at_ms += random.choice([0, 1, 400, 999, 1_000, 2_999, 3_000])


def check_restarts(name: str, seed: int) -> None:
    """Two at the desk get the same, and one of them restarts in each pause."""
    random, pipeline = Random(seed), pipeline_of(name)
    steady, restarted = Desk(pipeline, 5), Desk(pipeline, 5, restarts=True)

    def both(found: list[Outcome], again: list[Outcome]) -> None:
        assert list(map(str, again)) == list(map(str, found))

    for _ in range(random.choice([2, 4, 6])):
        lines = list(some_records(random, steady._clock.watermark_ms or 20_000))
        partitions = [json.loads(line)["pump"] == "b" for line in lines]
        both(*(list(desk.feed(DeskRecords(lines, [int(one) for one in partitions]))) for desk in (steady, restarted)))
        if random.random() < 0.5:
            both(*(list(desk.drain()) for desk in (steady, restarted)))
        else:
            pause_ms = random.choice([1_000, 4_000, 5_999, 6_000, 8_999, 30_000])
            both(*(list(desk.wait(pause_ms)) for desk in (steady, restarted)))
        restarted.restart()
        ends_ms, closed_ms = open_until(pipeline.windows, steady._clock.latest_event_ms), steady._clock.watermark_ms
        if ends_ms is not None and closed_ms is not None and closed_ms >= ends_ms and name not in OUTLIVES:
            assert restarted._earlier_batches == [], "nothing is open, so nothing is read again"
    both(*(list(desk.drain()) for desk in (steady, restarted)))


@pytest.mark.guarantee("G910")
@pytest.mark.guarantee("G669")
@pytest.mark.parametrize("name", STEPS)
@examples(40)
@given(st.integers(0, 2**32))
def test_a_restart_in_a_pause_changes_nothing(name: str, seed: int) -> None:
    check_restarts(name, seed)


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("session", "early"),
        ("join", "early"),
        pytest.param("sessions of windows", "early", marks=pytest.mark.long),
        ("dedupe", "forgets"),
        ("dedupe before sessions", "forgets"),
        ("dedupe of records", "forgets"),
        ("revised", "forgets"),
    ],
)
def test_what_still_counts_is_seen(name: str, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: where windows count as closed a millisecond early, and where what outlives them is forgotten."""
    plain = event_time.may_still_count

    def too_early(shapes: list[WindowShape], emitted_ms: list[int], latest_ms: int) -> bool:
        return plain(shapes, [one + 1 for one in emitted_ms], latest_ms)

    def forgets(shapes: list[WindowShape], emitted_ms: list[int], latest_ms: int) -> bool:
        ends_ms = event_time._open_ends(shapes, latest_ms)
        return any(end_ms > emitted for end_ms, emitted in zip(ends_ms, emitted_ms, strict=True))

    monkeypatch.setattr(event_time, "may_still_count", too_early if mistake == "early" else forgets)
    with pytest.raises(AssertionError):
        deque((check_restarts(name, seed) for seed in range(300)), maxlen=0)
