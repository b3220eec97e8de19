"""The rule of event time, its former form, other forms that were proposed, and mistakes that are built in to see that they are
found. Each is the real arithmetic with one part replaced."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from strandline.ledger.states import EventTimeRule, Offsets, SliceRow
from strandline.processing.slices import silence, watermark
from strandline.processing.slices.silence import GAP_MAX_MS, SeenEnds, SilenceMeter

Vector = dict[int, int]
_stream_time = watermark._stream_time
_look = SilenceMeter.look


@dataclass(frozen=True)
class Variant:
    """A way in which the job treats event time in a history."""

    replaced: tuple[tuple[Any, str, Any], ...] = ()
    """Tuples (object, attribute, replacement)."""
    is_bounded: bool = True
    """False if event times ahead of log times count in full."""
    meter: type = SilenceMeter
    keeps_meter: bool = False
    """True if a new run goes on with the counts of the run before."""
    closes_after: Callable[[SliceRow, Offsets, Mapping[str, Collection[int]]], int | None] = watermark.closes_after

    def patches(self) -> ExitStack:
        stack = ExitStack()
        for owner, name, other in self.replaced:
            stack.enter_context(mock.patch.object(owner, name, other))
        return stack


class FormerMeter:
    """Silence as it was counted before: any record ends it."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self.monotonic_ms = monotonic_ms
        self._seen: dict[int, tuple[int, int, bool]] = {}
        self._answered_ms: int | None = None
        self.read: Callable[[], Vector] = dict

    def look(self, ask: Callable[[], SeenEnds], *_: object) -> tuple[Vector, Vector]:
        answered_ms, self._answered_ms = self._answered_ms, None
        ends, *_ = ask()
        self._answered_ms = now_ms = self.monotonic_ms()
        if answered_ms is None:
            self._seen.clear()
        gap_ms = min(now_ms - answered_ms, GAP_MAX_MS) if answered_ms is not None else 0
        read = self.read()
        for at, end in ends.items():
            is_quiet, (before, counted_ms, was_quiet) = read.get(at) == end, self._seen.get(at, (-1, 0, False))
            counted_ms = counted_ms + (gap_ms if is_quiet and was_quiet else 0) if before == end else 0
            self._seen[at] = end, counted_ms, is_quiet
        return ends, {at: self._seen[at][1] for at in ends}


class NeverBeginsAgain(SilenceMeter):
    def look(self, ask: Any, accepted_in: Any, closed: Any = tuple) -> tuple[Vector, Vector]:
        return _look(self, ask, {}, closed)


class CountsWhatCannotBeWritten(SilenceMeter):
    def look(self, ask: Any, accepted_in: Any, closed: Any = tuple) -> tuple[Vector, Vector]:
        return _look(self, ask, accepted_in)


class CountsOutages(SilenceMeter):
    def look(self, ask: Any, accepted_in: Any, closed: Any = tuple) -> tuple[Vector, Vector]:
        before_ms = self._answered_ms
        try:
            return _look(self, ask, accepted_in, closed)
        except Exception:
            self._answered_ms = before_ms
            raise


def _one_form(change: Callable[[watermark._StreamTime], watermark._StreamTime]) -> Any:
    def stream_time(*arguments: Any) -> watermark._StreamTime | None:
        found = _stream_time(*arguments)
        return found if found is None or found.awake_ms is not None else change(found)

    return watermark, "_stream_time", stream_time


_MINIMUM = _one_form(lambda time: replace(time, released_ms=-1))
_MAXIMUM = _one_form(lambda time: replace(time, least_ms=time.latest_ms))


def _forget_the_timeout(rule: EventTimeRule, reached: Offsets, silence_ms: Offsets, **more: Any) -> int | None:
    return _watermark_by(replace(rule, idle_timeout_ms=rule.idle_timeout_ms and 1), reached, silence_ms, **more)


def _forget_the_delay(rule: EventTimeRule, reached: Offsets, silence_ms: Offsets, **more: Any) -> int | None:
    return _watermark_by(replace(rule, delay_ms=0), reached, silence_ms, **more)


_watermark_by = watermark.watermark_by
_closes_after = watermark.closes_after

CURRENT = Variant()
FORMER = Variant((_MAXIMUM,), is_bounded=False, meter=FormerMeter)
PROPOSED = {
    "the former rule": FORMER,
    "the bound alone, with the maximum": Variant((_MAXIMUM,), meter=FormerMeter),
    "the bound and the minimum alone": Variant((_MINIMUM,)),
    "the bound and the maximum": Variant((_MAXIMUM,)),
    "the rule": CURRENT,
}
"""Forms of the rule that are compared."""
MISTAKES = {
    "event times count beyond log times": Variant(is_bounded=False),
    "rejected records end a silence": Variant(meter=FormerMeter),
    "nothing releases the partition furthest behind": Variant((_MINIMUM,)),
    "accepted records don't end the count": Variant(meter=NeverBeginsAgain),
    "time counts though a partition can't be written": Variant(meter=CountsWhatCannotBeWritten),
    "outages count": Variant(((silence, "GAP_MAX_MS", 10**9),), meter=CountsOutages),
    "all time between two looks counts": Variant(((silence, "GAP_MAX_MS", 10**9),)),
    "a new run goes on counting": Variant(((silence, "GAP_MAX_MS", 10**9),), keeps_meter=True),
    "accepted records of the slice don't end a silence": Variant(
        closes_after=lambda row, reached, accepted: _closes_after(row, reached, {})
    ),
    "the timeout is a millisecond": Variant(((watermark, "watermark_by", _forget_the_timeout),)),
    "the delay is left out": Variant(((watermark, "watermark_by", _forget_the_delay),)),
}
"""Each alone must be found."""
