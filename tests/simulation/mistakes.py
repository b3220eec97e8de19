"""Mistakes that are put into every run of a history, to see that they are found.

They are those of the planner, its watermarks and silences. Mistakes in the steps of a run are in `run.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

from strandline.ledger.many_rows import Refusals
from strandline.ledger.states import CheckpointRow, EventTimeRule, Offsets, SliceRow
from strandline.processing.slices import continuity, silence, watermark
from strandline.processing.slices import planner as planner_module
from strandline.processing.slices.continuity import LogContinuity
from strandline.processing.slices.silence import SeenEnds
from tests.simulation import run as run_module
from tests.simulation.log import Record

if TYPE_CHECKING:
    from tests.simulation.world import World

HOUR_MS = 3_600_000
Vector = dict[int, int]


def make_mistake(world: World, patches: ExitStack) -> None:
    """Build the world's mistake in, if it is one of these."""
    if mistake := MISTAKES.get(world.broken):
        mistake(world, patches)


def _watermark(change: Callable[[int], int], rule: Callable[[EventTimeRule], EventTimeRule]) -> _Mistake:
    """Make a mistake in what is in force for a slice."""

    def build_in(_: World, patches: ExitStack) -> None:
        def after(
            said: EventTimeRule, checkpoint: CheckpointRow | None, silence_ms: Offsets, **more: bool
        ) -> int | None:
            found = watermark.watermark_after(rule(said), checkpoint, silence_ms, **more)
            return None if found is None else change(found)

        patches.enter_context(mock.patch.object(planner_module, "watermark_after", after))

    return build_in


def _close(change: Callable[[int], int], rule: Callable[[EventTimeRule], EventTimeRule]) -> _Mistake:
    """Make a mistake in what a slice closes."""

    def build_in(_: World, patches: ExitStack) -> None:
        def after(row: SliceRow, reached: Offsets, accepted: Mapping[str, Collection[int]]) -> int | None:
            found = watermark.closes_after(replace(row, rule=rule(row.rule)), reached, accepted)
            return None if found is None else change(found)

        patches.enter_context(mock.patch.object(run_module, "closes_after", after))

    return build_in


def _meter(look: Callable[[World, Mapping[int, int], dict[int, Any]], Vector]) -> _Mistake:
    """Make a mistake in what counts as silence.

    `look` gets the last slices with accepted records and what the run remembers.
    """

    def build_in(world: World, patches: ExitStack) -> None:
        class Meter:
            def __init__(self, monotonic_ms: Callable[[], int]) -> None:
                self.monotonic_ms = monotonic_ms
                self._seen: dict[int, Any] = {}

            def look(
                self, ask: Callable[[], SeenEnds], accepted_in: Mapping[int, int], _: Callable[[], object]
            ) -> tuple[Vector, Vector]:
                ends, *_ = ask()
                return ends, look(world, accepted_in, self._seen)

        patches.enter_context(mock.patch.object(run_module, "SilenceMeter", Meter))

    return build_in


def _by_the_wall_clock(world: World, accepted_in: Mapping[int, int], seen: dict[int, Any]) -> Vector:
    """The runner's time now, less the log time of the partition's last record."""
    now_ms = world.now_ms + world.wall_off_ms
    return {at: max(0, now_ms - records[-1].log_ms) for at, records in enumerate(world.log.records) if records}


def _whatever_is_pending(world: World, accepted_in: Mapping[int, int], seen: dict[int, Any]) -> Vector:
    """Since a look saw the partition grow last: outages, open transactions and long pauses included."""
    found = {}
    for partition, end in world.log.ends("").items():
        if seen.get(partition, (None, 0))[0] != end:
            seen[partition] = end, world.mono_ms
        found[partition] = world.mono_ms - seen[partition][1]
    return found


def _read_added_partitions_from_their_end(world: World, patches: ExitStack) -> None:
    plan = world.ledger.plan_slices

    def plan_slices(rows: Sequence[SliceRow]) -> Refusals:
        (row,) = rows
        before = world.ledger.last_slice(world.job)
        known = before.offsets if before is not None else row.offsets
        firsts = {
            stream: {
                one: row.offsets_first[stream].get(one, 0) if one in known[stream] else end for one, end in ends.items()
            }
            for stream, ends in row.offsets.items()
        }
        return plan([replace(row, offsets_first=firsts)])

    patches.enter_context(mock.patch.object(world.ledger, "plan_slices", plan_slices))


def _keep_the_partitions_of_the_beginning(world: World, patches: ExitStack) -> None:
    ends, first = world.log.ends_with_open, world.log.partitions_first

    def some(stream: str) -> Vector:
        return {partition: end for partition, end in ends(stream).items() if partition < first}

    patches.enter_context(mock.patch.object(world.log, "ends_with_open", some))


def _mask_what_is_cut_off(world: World, patches: ExitStack) -> None:
    """Make the run assume that what was read once always exists."""
    patches.enter_context(mock.patch.object(LogContinuity, "reaches", return_value=True))
    patches.enter_context(mock.patch.object(LogContinuity, "sealed", lambda _, row, *__: row))
    patches.enter_context(mock.patch.object(LogContinuity, "require", return_value=None))


def _look_at_ends_alone(world: World, patches: ExitStack) -> None:
    """Other records under the same offsets are not seen."""
    patches.enter_context(mock.patch.object(LogContinuity, "sealed", lambda _, row, *__: row))


def _take_any_topic_of_the_name(world: World, patches: ExitStack) -> None:
    patches.enter_context(mock.patch.object(LogContinuity, "require_same_topic", return_value=None))


def _believe_a_broker_that_is_behind(world: World, patches: ExitStack) -> None:
    patches.enter_context(mock.patch.object(continuity, "DOUBT_MS", 0))


def _count_all_between_two_looks(world: World, patches: ExitStack) -> None:
    patches.enter_context(mock.patch.object(silence, "GAP_MAX_MS", HOUR_MS))


def _overwrite(world: World, patches: ExitStack) -> None:
    world.index.is_overwriting = True


def _accept_the_future(world: World, patches: ExitStack) -> None:
    reason_against = run_module.reason_against

    def reason(record: Record, one: SliceRow) -> str:
        return reason_against(record, replace(one, rule=replace(one.rule, max_ahead_ms=None)))

    patches.enter_context(mock.patch.object(run_module, "reason_against", reason))


_Mistake = Callable[["World", ExitStack], None]
MISTAKES: dict[str, _Mistake] = {
    "raises the watermark by an hour": _watermark(lambda ms: ms + HOUR_MS, lambda rule: rule),
    "raises the watermark by a millisecond": _watermark(lambda ms: ms + 1, lambda rule: rule),
    "raises the close by an hour": _close(lambda ms: ms + HOUR_MS, lambda rule: rule),
    "closes what ends a second later": _close(lambda ms: ms + 1_000, lambda rule: rule),
    "follows the newest partition": _watermark(lambda ms: ms, lambda rule: replace(rule, watermark="newest")),
    "leaves out the delay": _watermark(lambda ms: ms, lambda rule: replace(rule, delay_ms=0)),
    "has no partition idle": _watermark(lambda ms: ms, lambda rule: replace(rule, idle_timeout_ms=None)),
    "counts silence by the wall clock": _meter(_by_the_wall_clock),
    "counts whatever is pending as silence": _meter(_whatever_is_pending),
    "reads added partitions from their end": _read_added_partitions_from_their_end,
    "masks what is cut off": _mask_what_is_cut_off,
    "looks at ends alone": _look_at_ends_alone,
    "takes any topic of the name": _take_any_topic_of_the_name,
    "believes a broker that is behind": _believe_a_broker_that_is_behind,
    "counts all between two looks as silence": _count_all_between_two_looks,
    "overwrites documents": _overwrite,
    "accepts records from the future": _accept_the_future,
    "keeps the partitions of the beginning": _keep_the_partitions_of_the_beginning,
}
