"""Changes between two versions of a pipeline, and whether the new version can take over at the last emission. Pure.

The new version begins where the old one ended: it rewinds the log, and computes the windows that end later, each once. So the
computation of windows from records can change in any way. The rule of event time can change, because each slice uses the rule
that is recorded with it. The meaning of the recorded slices must not change: the stream, and the field of event time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from strandline.core.described import Described
from strandline.core.times.durations import format_duration
from strandline.processing.pipelines.checked_pipeline import CheckedInput, CheckedPipeline
from strandline.processing.pipelines.row_step import Identity
from strandline.processing.pipelines.stages import LEFT, Emit, RecordStage, Stage, StageInput, identities
from strandline.results.index_settings import IndexSettings
from strandline.results.sinks.registry import sink_of


class Effect(StrEnum):
    """The effect of a change on a job that has begun."""

    SAFE = "safe"
    """The change affects no result."""
    REWIND = "rewind"
    """Windows that are not emitted yet are recomputed from the log by the new version."""
    FORBIDDEN = "forbidden"
    """The job can't accept the change."""


@dataclass(frozen=True)
class Change(Described):
    """One difference between two versions."""

    change: str
    effect: Effect
    """`rewind`: windows that are not emitted yet are recomputed from the log. `forbidden`: the job can't accept the change."""
    reason: str
    """Consequence of the change, or the reason why it is forbidden."""


def changes_between(before: CheckedPipeline, after: CheckedPipeline) -> list[Change]:
    """Return every difference in meaning, forbidden ones first. Empty if only the text differs."""
    found = [*_of_input(before, after), *_of_stages(before, after), *_of_emissions(before, after)]
    order = [Effect.FORBIDDEN, Effect.REWIND, Effect.SAFE]
    return sorted(found, key=lambda change: order.index(change.effect))


def forbidden_at_sinks(
    before: CheckedPipeline, after: CheckedPipeline, places: Collection[tuple[str, str]]
) -> list[Change]:
    """Return the reasons why `after` can't emit to these sinks, (kind, name). `before` emitted to them, and no version between
    the two did, so its results are still there."""
    old_places = {emit: stage for stage in before.all_stages for emit in stage.emits}
    new_places = {emit: stage for stage in after.all_stages for emit in stage.emits}
    both = [emit for emit in new_places if emit in old_places and (emit.kind, emit.name) in places]
    found = [one for emit in both for one in _of_place(emit, old_places[emit], new_places[emit], before, after)]
    return [change for change in found if change.effect is Effect.FORBIDDEN]


def _of_input(before: CheckedPipeline, after: CheckedPipeline) -> Iterator[Change]:
    old, new = list(before.streams), list(after.streams)
    if set(old) != set(new):
        several = len(old) > 1 or len(new) > 1
        yield Change(
            f"input from stream{'s' * several} {', '.join(old)} to {', '.join(new)}",
            Effect.FORBIDDEN,
            "the recorded slices are of the old stream"
            if not several
            else "the recorded slices contain the read position and the event time of the old streams",
        )
        return
    if old != new:
        yield Change(
            f"the order of the streams from {', '.join(old)} to {', '.join(new)}",
            Effect.REWIND,
            "open windows add the records of the streams in the new order",
        )
    ranges = [[(read.start, read.end) for read in one.spec.reads] for one in (before, after)]
    if (before.spec.is_batch or after.spec.is_batch) and ranges[0] != ranges[1]:
        yield Change(
            "the range that is read (start and end)",
            Effect.FORBIDDEN,
            "the end of a batch is recorded before it begins, and a job without an end continues",
        )
    for stream in new:
        of_which = f" of stream {stream}" if len(new) > 1 else ""
        yield from _of_event_time(before.input_of(stream), after.input_of(stream), of_which)
    if (before.spec.guarantee, before.spec.checkpoint) != (after.spec.guarantee, after.spec.checkpoint):
        yield Change("guarantee or checkpoint", Effect.SAFE, "counts from the next slice on")
    if before.spec.recovery != after.spec.recovery:
        yield Change("recovery", Effect.SAFE, "counts from the start after the next one on")
    if before.spec.placement != after.spec.placement:
        yield Change("placement", Effect.SAFE, "the job moves after its current slice, and rewinds in the other runner")
    if before.spec.revise_ms != after.spec.revise_ms:
        was, now = (format_duration(one.spec.revise_ms) if one.spec.revise_ms else "never" for one in (before, after))
        yield Change(
            f"late records revise results for {now}, not {was}",
            Effect.SAFE,
            "counts from the next slice on; what is closed by then is not revised any more",
        )
    said = [(one.spec.on_error, one.spec.late == "drop") for one in (before, after)]
    if said[0] != said[1]:
        yield Change("late or on_error", Effect.SAFE, "counts from the next slice on")
    if before.spec.dead_letters != after.spec.dead_letters:
        yield Change(
            "dead_letters", Effect.SAFE, "counts immediately; without `index: true` the index keeps its content"
        )


def _of_event_time(before: CheckedInput, after: CheckedInput, of_which: str) -> Iterator[Change]:
    """Yield the changes of event time in one input. `of_which`: words for its stream, if there are several. Otherwise empty."""
    if before.event_time_source != after.event_time_source:
        yield Change(
            f"event time{of_which} from {before.event_time_source} to {after.event_time_source}",
            Effect.FORBIDDEN,
            "the recorded watermarks belong to the old event time, and nearly every record could be late by them",
        )
    old_rule, new_rule = before.event_time_rule, after.event_time_rule
    if old_rule.delay_ms != new_rule.delay_ms:
        yield Change(
            f"delay{of_which} from {format_duration(old_rule.delay_ms)} to {format_duration(new_rule.delay_ms)}",
            Effect.SAFE,
            "counts from the next slice on; what is closed stays closed",
        )
    if old_rule.watermark != new_rule.watermark:
        yield Change(
            f"watermark{of_which} from {old_rule.watermark} to {new_rule.watermark}",
            Effect.SAFE,
            "counts from the next slice on; what is closed stays closed",
        )
    if old_rule.idle_timeout_ms != new_rule.idle_timeout_ms:
        old_text, new_text = (_or_never(rule.idle_timeout_ms) for rule in (old_rule, new_rule))
        yield Change(
            f"idle_timeout{of_which} from {old_text} to {new_text}", Effect.SAFE, "counts from the next slice on"
        )
    if old_rule.max_ahead_ms != new_rule.max_ahead_ms:
        old_text, new_text = (_or_never(rule.max_ahead_ms) for rule in (old_rule, new_rule))
        reason = "counts from the next slice on"
        if old_rule.max_ahead_ms is not None and (new_rule.max_ahead_ms or math.inf) > old_rule.max_ahead_ms:
            limit = "" if new_rule.max_ahead_ms is None else f"up to {new_text} "
            reason += (
                f". Records {limit}in the future then count: their windows are in the future, and stay open until then. Such a "
                f"record moves the watermark to its log time less the delay ({format_duration(new_rule.delay_ms)}), so later "
                "correct records may be late"
            )
        yield Change(f"max_ahead{of_which} from {old_text} to {new_text}", Effect.SAFE, reason)


def _of_stages(before: CheckedPipeline, after: CheckedPipeline) -> Iterator[Change]:
    old_stages = {stage.name: stage for stage in before.stages}
    new_stages = {stage.name: stage for stage in after.stages}
    for name in old_stages.keys() - new_stages.keys():
        yield Change(f"window {name} is gone", Effect.SAFE, "its results stay, and it has no new ones")
    for name in new_stages.keys() - old_stages.keys():
        yield Change(f"window {name} is new", Effect.REWIND, "its first result is of the first window not yet closed")
    for name in sorted(old_stages.keys() & new_stages.keys()):
        yield from _of_stage(old_stages[name], new_stages[name])
        if _first_steps(old_stages[name]) == _first_steps(new_stages[name]) and (
            _paths(before, old_stages[name]) != _paths(after, new_stages[name])
        ):
            yield Change(
                f"the streams of {new_stages[name].keyword} {name}",
                Effect.REWIND,
                "open windows are computed in the new way",
            )
        taken, now_taken = before.taken_by(name), after.taken_by(name)
        if taken != now_taken:
            yield Change(
                f"window {name} takes {_taken(now_taken)}, not {_taken(taken)}",
                Effect.REWIND,
                "open windows are computed in the new way",
            )
    old_records = {stage.name: stage for stage in before.record_stages}
    new_records = {stage.name: stage for stage in after.record_stages}
    for name in old_records.keys() - new_records.keys():
        yield Change(f"emission {name} of records is gone", Effect.SAFE, "its results stay, and it has no new ones")
    for name in new_records.keys() - old_records.keys():
        yield Change(f"emission {name} of records is new", Effect.SAFE, "it begins with the records of the next slice")
    for name in sorted(old_records.keys() & new_records.keys()):
        old, new = old_records[name], new_records[name]
        if (_paths(before, old), old.fields) != (_paths(after, new), new.fields):
            yield Change(f"the steps before emission {name} of records", Effect.SAFE, "counts from the next slice on")


def _paths(pipeline: CheckedPipeline, stage: Stage | RecordStage) -> dict[tuple[str, int], list[Identity]]:
    """Return (stream, input of a join) -> the steps from the stream to the stage."""
    streams = list(pipeline.streams)
    paths = [(0, path) for path in stage.paths] if isinstance(stage, RecordStage) else stage.record_paths
    return {(streams[path.stream], side): identities(path.steps) for side, path in paths}


def _first_steps(stage: Stage) -> list[list[Identity]]:
    """Return, for each input, the steps whose changes are reported separately: those of the first path."""
    return [identities(one.first_steps) for one in stage.inputs]


def _steps_to(given: StageInput) -> tuple[list[Identity], bool]:
    return identities(given.first_steps), given.before_post_steps


def _of_stage(old: Stage, new: Stage) -> Iterator[Change]:
    if old.compared_windows != new.compared_windows:
        yield Change(
            f"window {old.name} from {old.shape} to {new.shape}",
            Effect.REWIND,
            "the new windows that end after the last emitted one are computed whole; the last old ones overlap them",
        )
    yield from _of_facts(old, new)
    if old.by != new.by:
        yield Change(f"the key of window {old.name}", Effect.REWIND, "open windows are computed by the new key")
    if old.aggregates != new.aggregates:
        yield Change(f"the aggregates of window {old.name}", Effect.REWIND, "open windows are computed in the new way")
    if (old.packages, old.kind_package) != (new.packages, new.kind_package):
        yield Change(f"the packages of window {old.name}", Effect.REWIND, "open windows are computed in the new way")
    if _steps_to(old.inputs[LEFT]) != _steps_to(new.inputs[LEFT]):
        yield Change(f"the steps before window {old.name}", Effect.REWIND, "open windows are computed in the new way")
    if identities(old.post_steps) != identities(new.post_steps):
        yield Change(f"the steps after window {old.name}", Effect.REWIND, "open windows are computed in the new way")


def _of_facts(old: Stage, new: Stage) -> Iterator[Change]:
    """Yield the changes of facts that only this kind of stage has, or the change of the kind."""
    how = "results after the last emitted one are computed in the new way"
    if old.keyword != new.keyword:
        yield Change(f"{old.name} from a {old.keyword} to a {new.keyword}", Effect.REWIND, how)
        return
    now = new.upgrade_facts
    for what, was in old.upgrade_facts.items():
        if was != now[what]:
            yield Change(f"{what} of {old.keyword} {old.name}", Effect.REWIND, how)


def _of_emissions(before: CheckedPipeline, after: CheckedPipeline) -> Iterator[Change]:
    """Yield the changes of sinks: removed and new ones, and the changes in each sink that both versions write to. There, fields
    must keep their types, and documents their meaning."""
    old_places = {emit: stage for stage in before.all_stages for emit in stage.emits}
    new_places = {emit: stage for stage in after.all_stages for emit in stage.emits}
    for emit in old_places.keys() - new_places.keys():
        reason = "existing results stay"
        if sink_of(emit).is_stream:
            reason += ", and jobs that read it still read whole emissions, up to the last one"
        yield Change(f"no more results to {emit.kind} {emit.name}", Effect.SAFE, reason)
    for emit in new_places.keys() - old_places.keys():
        yield Change(f"results to {emit.kind} {emit.name}", Effect.SAFE, _begins_with(new_places[emit]))
    for emit in old_places.keys() & new_places.keys():
        yield from _of_place(emit, old_places[emit], new_places[emit], before, after)


def _of_place(
    emit: Emit, old: Stage | RecordStage, new: Stage | RecordStage, before: CheckedPipeline, after: CheckedPipeline
) -> Iterator[Change]:
    """Yield the changes in a sink that both versions write to. `old`, `new`: the stages that emit to it."""
    for name in sorted(old.field_types.keys() & new.field_types.keys()):
        if old.field_types[name] != new.field_types[name]:
            yield Change(
                f"field {name} in {emit.kind} {emit.name} from {old.field_types[name]} to {new.field_types[name]}",
                Effect.FORBIDDEN,
                "existing results have the old type; rename the field, or emit under another name",
            )
    if isinstance(old, Stage) != isinstance(new, Stage):
        yield Change(
            f"{emit.kind} {emit.name} from results of windows to records, or the reverse",
            Effect.FORBIDDEN,
            "existing results have other fields and another meaning; emit under another name",
        )
        return
    if _is_another(old, new, before, after):
        yield Change(
            f"{emit.kind} {emit.name} from results of {old.name} to those of {new.name}",
            Effect.FORBIDDEN,
            "existing results have another meaning, and would be mixed with the new ones; emit under another name",
        )
    old_settings, old_updates, old_options = _settings_of(old, emit)
    new_settings, new_updates, new_options = _settings_of(new, emit)
    if old_settings != new_settings:
        yield Change(
            f"the settings of the indices of {emit.name}",
            Effect.SAFE,
            "apply to new indices; existing indices keep theirs",
        )
    if old_updates != new_updates:
        yield Change(f"how often open windows of {emit.name} are shown", Effect.SAFE, "counts from the next slice on")
    if old_options != new_options:
        yield Change(
            f"the options of {emit.kind} {emit.name}",
            Effect.SAFE,
            "its package receives them from the next slice on",
        )
    if sink_of(emit).is_stream:
        yield from _of_stream(emit.name, old, new)


def _begins_with(stage: Stage | RecordStage) -> str:
    return "from the first window not yet closed on" if isinstance(stage, Stage) else "from the next slice on"


def _is_another(
    old: Stage | RecordStage, new: Stage | RecordStage, before: CheckedPipeline, after: CheckedPipeline
) -> bool:
    """Return True if `new` is another stage than `old`, not the same stage with a new name. Emissions of the same records are
    the same stage: without a name, its name is that of its first sink, so it changes when sinks are split or joined."""
    if old.name == new.name:
        return False
    if isinstance(old, RecordStage) and isinstance(new, RecordStage) and _paths(before, old) == _paths(after, new):
        return False
    is_left = any(stage.name == old.name for stage in after.all_stages)
    was_there = any(stage.name == new.name for stage in before.all_stages)
    if is_left or was_there:
        return True
    return isinstance(old, Stage) and isinstance(new, Stage) and old.compared_windows != new.compared_windows


def _settings_of(stage: Stage | RecordStage, emit: Emit) -> tuple[IndexSettings, int | None, str]:
    """Return the settings of the results' indices, how often open windows are shown, and the options for the package of a sink.
    If two sinks are equal, each stage has its own settings."""
    own = next(one for one in stage.emits if one == emit)
    return replace(own.index, updates_ms=None), own.index.updates_ms, own.options


def _of_stream(name: str, before: Stage | RecordStage, after: Stage | RecordStage) -> Iterator[Change]:
    """Yield the forbidden changes of results in a stream. Jobs that read the stream need its fields, and that no result is
    late."""
    for field in sorted(before.field_types.keys() - after.field_types.keys()):
        yield Change(
            f"no field {field} in stream {name} any more",
            Effect.FORBIDDEN,
            "the stream's schema has it, and jobs may read it; emit to another stream",
        )
    if not (isinstance(before, Stage) and isinstance(after, Stage)):
        return
    if after.shape.ends_move and not before.shape.ends_move:
        yield Change(
            f"windows in stream {name} that end where records end, from {before.shape} to {after.shape}",
            Effect.FORBIDDEN,
            "results would be in the order of their ends, so a long window would be late for readers whose event time is "
            "the beginning of windows; emit to another stream",
        )
    if after.size_ms > before.size_ms:
        yield Change(
            f"longer windows in stream {name}, from {format_duration(before.size_ms)} to {format_duration(after.size_ms)}",
            Effect.FORBIDDEN,
            "the first long window could begin before the last old one, and would be late for readers whose event time is "
            "the beginning of windows; emit to another stream",
        )


def _or_never(duration_ms: int | None) -> str:
    return "never" if duration_ms is None else format_duration(duration_ms)


def _taken(windows: Sequence[str]) -> str:
    return f"the results of {' and '.join(windows)}" if windows else "records"
