"""Checks that need all steps: the windows together, names, and the retention that windows need."""

from __future__ import annotations

from dataclasses import replace

from strandline.core.documents import Path
from strandline.core.times.durations import FOREVER_MS, format_duration
from strandline.processing.pipelines.checks.check_context import CheckContext
from strandline.processing.pipelines.event_time import RECORDS, places_taken, reach_of
from strandline.processing.pipelines.graph.branches import BRANCHES_MAX, entries_of, plan_branches
from strandline.processing.pipelines.graph.revisions import revised_stage, revision_problems
from strandline.processing.pipelines.row_step import WHOLE_RANGE_MS
from strandline.processing.pipelines.stages import Stage, StageInput, first_dedupe
from strandline.results.sinks.registry import form_of


def check_windows_together(context: CheckContext) -> None:
    """Add to `context` the problems of rules between windows: names, sizes, keys, sinks, and the retention that all windows
    need."""
    # A step can have several stages. The last one emits; the others lead to it.
    last_stages = {stage.number: at for at, stage in enumerate(context.stages)}
    windows = [
        (last_stages[number], number, step)
        for number, step in enumerate(context.pipeline.steps)
        if step.stage is not None
    ]
    if not windows and not context.record_stages:
        context.add(
            ("steps",),
            "has neither a window nor an 'emit'; expected at least one step 'window: {...}' or 'emit: [...]'",
        )
        return
    taken = places_taken([stage.shape for stage in context.stages])
    has_taker = {one for some in taken for one in some}
    has_branches = context.pipeline.has_branches
    for at, number, step in windows:
        if at not in has_taker and not context.stages[at].emits:
            which = f"no window reads '{step.stage_name}', so it" if has_branches else "the last window"
            context.add(
                ("steps", number),
                f"{which} must emit; write 'emit: [{{elasticsearch: NAME}}]' or '[{{stream: NAME}}]' next to '{step.keyword}'",
            )
    _steps_taken(context, has_branches=has_branches)
    _names_distinct(context)
    for at, number, step in windows:
        for before in taken[at]:
            if before != RECORDS and step.stage is not None:
                for inner, message in step.stage.problems_after(context.stages[at], context.stages[before]):
                    context.add(("steps", number, str(step.keyword), *inner), message)
    # If no step after a window changes a column, the column is the same before and after the window's emission.
    context.stages = [_without_needless_windows(context, stage) for stage in context.stages]
    if len(entries_of(plan_branches(context.stages))) > BRANCHES_MAX:
        context.add(
            ("steps",),
            f"has more than {BRANCHES_MAX} branches with their own keys; split it into several pipelines",
        )
    _retention(context)


def _without_needless_windows(context: CheckContext, stage: Stage) -> Stage:
    return replace(stage, inputs=tuple(_without_needless_window(context, one) for one in stage.inputs))


def _without_needless_window(context: CheckContext, given: StageInput) -> StageInput:
    has_steps = given.stage is not None and bool(context.stages[given.stage].post_steps)
    return replace(given, before_post_steps=given.before_post_steps and has_steps)


def _steps_taken(context: CheckContext, *, has_branches: bool) -> None:
    """Add a problem to `context` for each step that leads to no window and no emission."""
    steps = context.pipeline.steps
    leads: set[int] = set()
    for number in reversed(range(len(steps))):
        if number in leads or steps[number].stage_name or steps[number].emit:
            leads |= {number, *context.sources[number]}
    takers = [one for one in steps if one.stage_name or one.emit]
    last_taker = takers[-1].keyword or "emit" if takers else ""
    for number in range(len(steps)):
        if number not in leads:
            why = f"is after the last {last_taker}, where it changes nothing; move it before or remove"
            if has_branches:
                why = "leads to no window and no emit, so it changes nothing; read it in another step, or remove it"
            context.add(("steps", number), why)


def _names_distinct(context: CheckContext) -> None:
    stages: dict[str, str] = {}
    steps: dict[str, str] = {}
    sinks: set[tuple[str, str]] = set()
    for number, step in enumerate(context.pipeline.steps):
        is_record_stage = (
            step.stage_name is None
            and step.emit is not None
            and any(stage.number == number for stage in context.record_stages)
        )
        if step.stage_name is not None or is_record_stage:
            name = step.stage_name or step.record_stage_name
            kind = "stage"
            path: Path = ("name",)
            if step.keyword is not None:
                kind, path = step.keyword, (step.keyword, "name")
            if other := stages.get(name.lower()):
                what = "choose another name" if step.stage_name is not None else "set another with 'name:'"
                context.add(("steps", number, *path), f"a {kind} is already called '{other}'; {what}")
            elif step.own_name is not None and (other := steps.get(name.lower())):
                context.add(("steps", number, *path), f"a step is already called '{other}'; choose another name")
            stages.setdefault(name.lower(), name)
        elif step.name is not None:
            if other := stages.get(step.name.lower()) or steps.get(step.name.lower()):
                context.add(("steps", number, "name"), f"a step is already called '{other}'; choose another name")
            steps.setdefault(step.name.lower(), step.name)
        for position, emit in enumerate(step.emit or []):
            if (emit.kind, emit.name) in sinks:
                context.add(
                    ("steps", number, "emit", position, emit.kind),
                    f"'{emit.name}' is already emitted to; each emission needs its own {form_of(emit.kind).named}",
                )
            sinks.add((emit.kind, emit.name))


def check_revisions(context: CheckContext) -> None:
    """Add a problem to `context` if results can't be revised: see `revision_problems`. Set the revision of each stage, whose
    results then count the late records."""
    for path, message in revision_problems(context.pipeline, context.stages, context.record_stages):
        context.add(path, message)
    context.stages = [revised_stage(stage, context.pipeline.revise_ms) for stage in context.stages]


def _retention(context: CheckContext) -> None:
    # Windows wait for the stream that lags furthest behind, so the longest delay counts for all.
    delay_ms = max(one.event_time.delay for one in context.pipeline.reads)
    if not context.stages and first_dedupe(context.record_stages) is None:
        return  # records that are emitted as they are need no others
    horizons = [stage.dedupe.within_ms for stage in context.record_stages if stage.dedupe is not None]
    needed_ms = (
        delay_ms + context.pipeline.revise_ms + max([reach_of([stage.shape for stage in context.stages]), *horizons])
    )
    if (repeats := first_dedupe([*context.record_stages, *context.stages])) is not None and repeats.compares_all:
        needed_ms -= WHOLE_RANGE_MS  # the time for which a batch needs its range depends on how long it runs
    for stream in context.streams:
        if stream.retention_ms != FOREVER_MS and stream.retention_ms < needed_ms:
            context.add(
                ("steps",),
                f"the windows and the delay reach back {format_duration(needed_ms)}, but stream '{stream.stream}' "
                f"keeps records for only {format_duration(stream.retention_ms)}; raise its retention to at least "
                f"{format_duration(needed_ms)}",
            )
