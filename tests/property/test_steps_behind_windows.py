"""Steps behind the first window: a rounded mean goes through a `derive` and a `where` into further windows. Whatever is killed
and however a replay is merged, each result and each failure of a step is the same, to the last bit. Real are the plan and the
operators."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.slices.rewind import RewindPlan, plan_rewind
from strandline.processing.slices.watermark import emitted_up_to
from tests.property.test_rewind_windows import later
from tests.property.test_window_operator import END, Record, digest, histories, pipeline, run
from tests.support.examples import examples
from tests.support.ledgers import a_checkpoint

History = list[tuple[list[Record], int | None]]
FIRST = {"n": "count(*)", "mean": "round(avg(power), 2)"}
NEXT = {"n": "sum(n)", "mean": "round(avg(mean), 2)"}
DERIVE = {"derive": {"rate": "mean / (n - 2)"}}
WHERE = {"where": "mean / (n - 3) < 5"}


def window(name: str, size: str, by: list[str], aggregate: dict[str, str]) -> dict[str, Any]:
    return {"name": name, "tumbling": size, "by": by, "aggregate": aggregate}


RATED = pipeline(
    window("ten", "10s", ["machine", "site"], FIRST),
    window("minute", "1m", ["machine", "site"], NEXT | {"rate": "max(rate)"}),
    between=[DERIVE, {"where": "rate is null or rate < 1000"}],
)
PIPELINES = {
    "a derive fails": RATED,
    "a where fails": pipeline(
        window("ten", "10s", ["machine"], FIRST), window("minute", "1m", ["machine"], NEXT), between=[WHERE]
    ),
    "three stages": pipeline(
        window("five", "5s", ["machine"], FIRST),
        window("ten", "10s", ["machine"], NEXT),
        window("minute", "1m", ["machine"], NEXT),
        between=[DERIVE, WHERE],
    ),
    "by a wider key": pipeline(
        window("five", "5s", ["machine", "site"], FIRST),
        window("ten", "10s", ["site"], NEXT),
        window("minute", "1m", [], NEXT),
        between=[WHERE],
    ),
    "without a key": pipeline(
        window("five", "5s", [], FIRST),
        window("ten", "10s", [], NEXT),
        window("minute", "1m", [], NEXT),
        between=[DERIVE],
    ),
    "windows that slide": pipeline(
        {**window("ten", "10s", ["machine"], FIRST), "tumbling": None, "sliding": {"size": "10s", "every": "5s"}},
        window("minute", "1m", [], NEXT),
        between=[DERIVE, WHERE],
    ),
    "sessions": pipeline(
        {**window("ten", "10s", ["machine"], FIRST), "tumbling": None, "session": {"gap": "2s", "max": "6s"}},
        window("minute", "1m", [], NEXT),
        between=[DERIVE, WHERE],
    ),
    "sessions behind windows that grow": pipeline(
        {**window("ten", "10s", ["machine"], FIRST), "tumbling": None, "cumulative": {"size": "12s", "step": "3s"}},
        {**window("minute", "1m", ["machine"], NEXT), "tumbling": None, "session": {"gap": "4s", "max": "15s"}},
        between=[DERIVE],
    ),
    "sessions of all": pipeline(
        window("ten", "3s", ["machine"], FIRST),
        {**window("minute", "1m", [], NEXT), "tumbling": None, "session": {"gap": "5s", "max": "40s"}},
        between=[WHERE],
    ),
}


class Lifecycle:
    """A job that is killed again and again, with its emissions and commits."""

    def __init__(self, checked: CheckedPipeline, history: History, data: Any) -> None:
        self.checked, self.history, self._data = checked, history, data
        self.committed = 0
        self.emitted: dict[tuple[Any, ...], str] = {}
        """Stage, window and key -> the result or the failure."""
        self._reached = list(accumulate((max((row.ts_ms for row in rows), default=0) for rows, _ in history), max))

    def live(self) -> None:
        """Rewind, replay in batches of any size, and emit some new slices; the last of them may never be committed."""
        plan = self._plan()
        batches: History = []
        for rows, closes_ms in self.history[plan.slice_first - 1 : self.committed]:
            if batches and self._data.draw(st.booleans(), label="merged with the slice before"):
                batches[-1] = ([*batches[-1][0], *rows], closes_ms)
            else:
                batches.append((rows, closes_ms))
        count = self._data.draw(st.integers(1, len(self.history) - self.committed), label="slices")
        batches += self.history[self.committed : self.committed + count]
        before_ms = self.history[plan.slice_first - 2][1] if plan.slice_first > 1 else None
        buckets, chunk_rows = self._data.draw(st.tuples(st.integers(1, 4), st.integers(1, 9)), label="cut")
        found = later(run(self.checked, batches, buckets, chunk_rows, before_ms), plan.emitted)
        self._emit(found)
        is_killed = count < len(self.history) - self.committed and self._data.draw(st.booleans(), label="killed")
        self.committed += count - 1 if is_killed else count

    def _plan(self) -> RewindPlan:
        if not self.committed:
            return RewindPlan(1, 0)
        closes_ms = self.history[self.committed - 1][1]
        stages = [(stage.name, stage.shape) for stage in self.checked.stages]
        checkpoint = a_checkpoint(
            self.committed,
            closes_ms=closes_ms,
            emitted=emitted_up_to(stages, closes_ms, {}),
            latest_event_ms=self._reached[self.committed - 1],
        )
        plan = plan_rewind(checkpoint, self._first_slice_reaching, dict(stages))
        failed = {f"{stage} failed": end_ms for stage, end_ms in plan.emitted.items()}
        return RewindPlan(plan.slice_first, plan.slice_committed, plan.emitted | failed)

    def _first_slice_reaching(self, event_ms: int) -> int | None:
        reached = self._reached[: self.committed]
        return next((at for at, latest_ms in enumerate(reached, 1) if latest_ms >= event_ms), None)

    def _emit(self, found: dict[str, list[dict[str, Any]]]) -> None:
        for stage, rows in found.items():
            for row in rows:
                place = (stage, row["@window_start_ms"], row["@window_end_ms"], row.get("machine"), row.get("site"))
                text = digest({stage: [row]})
                assert self.emitted.setdefault(place, text) == text, "what is emitted again is the same"


@pytest.mark.guarantee("G142")
@pytest.mark.parametrize("checked", PIPELINES.values(), ids=PIPELINES)
@examples(8)
@given(histories(), st.data())
def test_restarts_and_merged_replays_change_no_result_and_no_failure(
    checked: CheckedPipeline, history: History, data: Any
) -> None:
    lives = Lifecycle(checked, history, data)
    while lives.committed < len(history):
        lives.live()
    at_once = run(checked, [([row for rows, _ in history for row in rows], END)], 1, 10**6)
    whole = Lifecycle(checked, history, data)
    whole._emit(at_once)
    assert lives.emitted == whole.emitted
    failures = [place for place in lives.emitted if place[0].endswith(" failed")]
    assert len(failures) == sum(len(rows) for stage, rows in at_once.items() if stage.endswith(" failed"))


@pytest.mark.guarantee("G142")
@examples(25)
@given(histories())
def test_what_a_step_has_no_value_for_is_in_no_further_window(history: History) -> None:
    """Though the filter behind it would let it pass. A plain loop over the first results says which the second window counts, and
    which have a dead letter."""
    found = run(RATED, history, 3, 5)
    failed = {(row["@window_start_ms"], row["machine"], row["site"]) for row in found["ten failed"]}
    assert len(failed) == len(found["ten failed"])
    minutes: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in found["ten"]:
        is_lost = row["mean"] is not None and row["n"] == 2
        assert ((row["@window_start_ms"], row["machine"], row["site"]) in failed) == is_lost
        if not is_lost and (row["mean"] is None or row["mean"] / (row["n"] - 2) < 1000):
            minutes[row["@window_start_ms"] // 60_000 * 60_000, row["machine"], row["site"]] += row["n"]
    assert {(row["@window_start_ms"], row["machine"], row["site"]): row["n"] for row in found["minute"]} == minutes
    assert not found["minute failed"]
