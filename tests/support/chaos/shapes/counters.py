"""The jobs over the meters, and the checker's knowledge of them: by the text of docs/counters.md and docs/store-and-forward.md.

`used` counts in windows, `steps` compares each record with the one before, and `archive` emits each record, no matter how old.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tests.support.chaos.checking.cascade import Key, Result
from tests.support.chaos.checking.documents import iso
from tests.support.chaos.checking.graph.pipeline import ANYWHERE
from tests.support.chaos.checking.judging import ClassifiedRecord
from tests.support.chaos.checking.pace import Pace, Windows
from tests.support.chaos.checking.pipelines import RULE, Pipeline
from tests.support.chaos.checking.versions import Version
from tests.support.chaos.dump import Row
from tests.support.chaos.shapes.meters import METERS
from tests.support.chaos.shapes.pipeline import ROWS, classify_rows
from tests.support.chaos.shapes.shape import ShapeJob

USED, STEPS, ARCHIVE = "used", "steps", "archive"
_HEAD = """\
pipeline: {job}
input: {{stream: {stream}}}
event_time: {{field: ts, delay: {delay}, idle_timeout: {idle}, max_ahead: {ahead}}}
steps:
"""
_ARCHIVE = """\
  - derive: {{scaled: wh * {times}}}
  - emit: [{{elasticsearch: {job}-{rows}}}]
    name: {rows}
"""
_USED = """\
  - window:
      name: used
      tumbling: {long}
      by: [meter]
      aggregate:
        n: count(*)
        used: increase(wh, '{within}')
        rate: rate(wh, '{within}')
        on_s: "duration(state = 'on', '{within}')"
        total: sum(wh * {times})
    emit: [{{elasticsearch: {job}-used}}]
"""
_STEPS = """\
  - window:
      name: steps
      previous: {{within: {within}}}
      by: [meter]
      aggregate:
        wh: current(wh)
        was: lag(wh)
        step: delta(wh)
        used: increase(wh)
        rate: rate(wh)
        on_s: "duration(state = 'on')"
        scaled: current(wh * {times})
    emit: [{{elasticsearch: {job}-steps}}]
"""
_REACHED = (
    "a reset",
    "a reset between two slices",
    "an increase across slices",
    "a gap that is too long",
    "a missing value",
)


class Step(NamedTuple):
    """A record, and the one of its meter before it in event time, if that is near enough."""

    one: ClassifiedRecord
    before: ClassifiedRecord | None
    number: int
    """Among the records of this meter and millisecond."""
    gap_ms: int | None
    """Time since the record before it, near or not."""

    @property
    def row(self) -> Row:
        assert self.one.member is not None
        return self.one.member

    @property
    def was(self) -> int | None:
        wh: int | None = (
            self.before.member["wh"] if self.before is not None and self.before.member is not None else None
        )
        return wh

    @property
    def used(self) -> int | None:
        """Increase of the counter. If it is lower now, it was reset to 0 in between."""
        now: int | None = self.row["wh"]
        if self.was is None or now is None:
            return None
        return now if now < self.was else now - self.was

    @property
    def seconds(self) -> float | None:
        return None if self.before is None or self.gap_ms is None else self.gap_ms / 1000

    @property
    def on_s(self) -> float | None:
        """Seconds in which the state of the record before was `on`."""
        if self.before is None or self.before.member is None or self.seconds is None:
            return None
        return self.seconds if self.before.member["state"] == "on" else 0.0


def steps_of(judged: Iterable[ClassifiedRecord], within_ms: int) -> Iterator[Step]:
    """Yield each used record with the one before it: by event time, then partition, then offset."""
    meters: dict[str, list[ClassifiedRecord]] = defaultdict(list)
    for one in judged:
        if one.member is not None:
            meters[one.member["meter"]].append(one)
    for rows in meters.values():
        rows.sort(key=lambda one: (one.event_ms or 0, one.record.partition, one.record.offset))
        before: ClassifiedRecord | None = None
        number = 0
        for one in rows:
            assert one.event_ms is not None
            gap_ms = None if before is None or before.event_ms is None else one.event_ms - before.event_ms
            number = number + 1 if gap_ms == 0 else 0
            yield Step(one, before if gap_ms is not None and gap_ms <= within_ms else None, number, gap_ms)
            before = one


def _within_ms(pace: Pace) -> int:
    return 2 * pace.long_ms


def _used(judged: list[ClassifiedRecord], pace: Pace, version: Version) -> dict[Key, Result]:
    windows: dict[tuple[int, str], list[Step]] = defaultdict(list)
    for step in steps_of(judged, _within_ms(pace)):
        windows[(step.row["ts"] // pace.long_ms + 1) * pace.long_ms, step.row["meter"]].append(step)
    results: dict[Key, Result] = {}
    for (end_ms, meter), inside in windows.items():
        used = _sum(step.used for step in inside)
        counted_s = _sum(step.seconds for step in inside if step.used is not None)
        total = _sum(step.row["wh"] for step in inside)
        values = {
            "n": len(inside),
            "used": used,
            "rate": used / counted_s if used is not None and counted_s else None,
            "on_s": _sum(step.on_s for step in inside),
            "total": None if total is None else total * version.times,
        }
        results[USED, end_ms, (meter,)] = Result(end_ms, {"meter": meter}, values)
    return results


def _steps(judged: list[ClassifiedRecord], pace: Pace, version: Version) -> dict[Key, Result]:
    results: dict[Key, Result] = {}
    for step in steps_of(judged, _within_ms(pace)):
        wh, was, used, meter = step.row["wh"], step.was, step.used, step.row["meter"]
        values = {
            "wh": wh,
            "was": was,
            "step": None if wh is None or was is None else wh - was,
            "used": used,
            "rate": used / step.seconds if used is not None and step.seconds else None,
            "on_s": step.on_s,
            "scaled": None if wh is None else wh * version.times,
        }
        end_ms = step.row["ts"] + 1
        start_ms = step.row["ts"] if step.before is None or step.before.event_ms is None else step.before.event_ms
        key = (STEPS, end_ms, (meter, str(step.number)))
        results[key] = Result(end_ms, {"meter": meter}, values, start_ms=start_ms, beside=(step.number,))
    return results


def _sum(values: Iterable[Any]) -> Any:
    """Return the sum of the values that there are. None if there are none. It is exact in any order."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _reached(judged: list[ClassifiedRecord], pace: Pace) -> Counter[str]:
    found: Counter[str] = Counter()
    for step in steps_of(judged, _within_ms(pace)):
        found["a missing value"] += step.row["wh"] is None
        found["a gap that is too long"] += step.before is None and step.gap_ms is not None
        if step.used is not None and step.before is not None:
            is_reset = step.row["wh"] < (step.was or 0)
            is_across = step.before.slice != step.one.slice
            found["a reset"] += is_reset
            found["a reset between two slices"] += is_reset and is_across
            found["an increase across slices"] += is_across
    return found


def _of_archive(judged: list[ClassifiedRecord], _pace: Pace) -> Counter[str]:
    newest_ms: dict[int, int] = {}
    found: Counter[str] = Counter()
    for one in judged:
        if one.event_ms is not None and one.reason is None:
            found["an old record that is emitted"] += one.event_ms < newest_ms.get(one.record.partition, 0) - 60_000
            newest_ms[one.record.partition] = max(one.event_ms, newest_ms.get(one.record.partition, 0))
    return found


def _columns(one: ClassifiedRecord, version: Version) -> Row:
    assert one.member is not None
    wh = one.member["wh"]
    return one.member | {"ts": iso(one.member["ts"]), "scaled": None if wh is None else wh * version.times}


def _pipeline_of_used(pace: Pace) -> Pipeline:
    return Pipeline(
        {USED: Windows(pace.long_ms, pace.long_ms)},
        RULE,
        lambda record, row: classify_rows(record, row, METERS),
        lambda judged, version: _used(judged, pace, version),
        reached=lambda judged: _reached(judged, pace),
        must_reach=(*METERS.must_reach, *_REACHED),
    )


def _pipeline_of_steps(pace: Pace) -> Pipeline:
    return Pipeline(
        {STEPS: ANYWHERE},
        RULE,
        lambda record, row: classify_rows(record, row, METERS),
        lambda judged, version: _steps(judged, pace, version),
        reached=lambda judged: _reached(judged, pace),
        must_reach=(*METERS.must_reach, *_REACHED),
    )


def _pipeline_of_archive(pace: Pace) -> Pipeline:
    return Pipeline(
        {},
        RULE,
        lambda record, row: classify_rows(record, row, METERS, is_ever_late=False),
        lambda judged, version: {},
        records_stage=ROWS,
        columns=_columns,
        reached=lambda judged: _of_archive(judged, pace),
        must_reach=(*(one for one in METERS.must_reach if one != "late"), "an old record that is emitted"),
    )


METER_JOBS = (
    ShapeJob("chaos-used", _HEAD + _USED, (USED,), _pipeline_of_used),
    ShapeJob("chaos-steps", _HEAD + _STEPS, (STEPS,), _pipeline_of_steps),
    ShapeJob("chaos-archive", _HEAD + _ARCHIVE, (), _pipeline_of_archive, records=ROWS),
)
