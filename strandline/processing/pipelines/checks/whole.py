"""What is checked when all steps are known: the windows together, names, and the retention that they need."""

from __future__ import annotations

from dataclasses import replace

from strandline.core.documents import Path
from strandline.core.times.durations import FOREVER_MS, format_duration
from strandline.core.times.time_zones import zone_names
from strandline.processing.pipelines.calendars import days_begin_at_multiples, longer_ms_max
from strandline.processing.pipelines.checks.check_context import CheckContext
from strandline.processing.pipelines.event_time import RECORDS, places_taken, reach_of
from strandline.processing.pipelines.graph.branches import BRANCHES_MAX, entries_of, plan_branches
from strandline.processing.pipelines.graph.revisions import revised_stage, revision_problems
from strandline.processing.pipelines.model.windows import WindowSpec
from strandline.processing.pipelines.row_step import WHOLE_RANGE_MS
from strandline.processing.pipelines.stages import Stage, StageInput, first_dedupe


def check_windows_together(context: CheckContext) -> None:
    """The rules between windows: names, sizes, keys, sinks, and the retention that they need together."""
    windows = [(number, step) for number, step in enumerate(context.pipeline.steps) if step.stage_name is not None]
    if not windows and not context.record_stages:
        context.add(
            ("steps",),
            "has neither a window nor an 'emit'; expected at least one step 'window: {...}' or 'emit: [...]'",
        )
        return
    taken = places_taken([stage.shape for stage in context.stages])
    has_taker = {one for some in taken for one in some}
    has_branches = context.pipeline.has_branches
    for at, (number, step) in enumerate(windows):
        if at not in has_taker and not context.stages[at].emits:
            which = f"no window takes from '{step.stage_name}', so it" if has_branches else "the last window"
            verb = "window" if step.window is not None else "join"
            context.add(
                ("steps", number),
                f"{which} must emit; write 'emit: [{{elasticsearch: NAME}}]' or '[{{stream: NAME}}]' beside '{verb}'",
            )
    _steps_taken(context, has_branches=has_branches)
    _names_distinct(context)
    for at, (number, step) in enumerate(windows):
        window = step.window if step.join is None or step.join.tumbling is None else _as_window(context, at)
        for before in taken[at]:
            if before != RECORDS and window is not None and (one := _as_window(context, before)) is not None:
                _cascade(context, ("steps", number, "window" if step.join is None else "join"), window, one)
    # What no step behind a window changes is the same before its emission and behind.
    context.stages = [_without_needless_windows(context, stage) for stage in context.stages]
    if len(entries_of(plan_branches(context.stages))) > BRANCHES_MAX:
        context.add(
            ("steps",),
            f"has more than {BRANCHES_MAX} branches with keys of their own; cut it into several pipelines",
        )
    _retention(context)


def _without_needless_windows(context: CheckContext, stage: Stage) -> Stage:
    return replace(stage, inputs=tuple(_without_needless_window(context, one) for one in stage.inputs))


def _without_needless_window(context: CheckContext, given: StageInput) -> StageInput:
    has_steps = given.stage is not None and bool(context.stages[given.stage].post_steps)
    return replace(given, before_post_steps=given.before_post_steps and has_steps)


def _as_window(context: CheckContext, at: int) -> WindowSpec | None:
    """What the stage at this place is to the windows behind it. None: its results begin and end anywhere."""
    steps = [step for step in context.pipeline.steps if step.stage_name is not None]
    join, stage = steps[at].join, context.stages[at]
    if join is None:
        return steps[at].window
    if join.same_window and (left := stage.inputs[0].stage) is not None:
        return _as_window(context, left)
    return None if join.tumbling is None else WindowSpec.model_construct(name=join.name, tumbling=join.tumbling)


def _steps_taken(context: CheckContext, *, has_branches: bool) -> None:
    """Each step leads to a window or an emission."""
    steps = context.pipeline.steps
    leads: set[int] = set()
    for number in reversed(range(len(steps))):
        if number in leads or steps[number].stage_name or steps[number].emit:
            leads |= {number, *context.sources[number]}
    takers = [one for one in steps if one.stage_name or one.emit]
    last_taker = "" if not takers else "window" if takers[-1].window else "join" if takers[-1].join else "emit"
    for number in range(len(steps)):
        if number not in leads:
            why = f"stands after the last {last_taker}, where it changes nothing; move it before or remove"
            if has_branches:
                why = "leads to no window and no emit, so it changes nothing; let one take from it, or remove it"
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
            kind, path = ("window", ("window", "name")) if step.window is not None else ("stage", ("name",))
            if step.join is not None:
                path = ("join", "name")
            if other := stages.get(name.lower()):
                what = "choose another name" if step.stage_name is not None else "say another with 'name:'"
                context.add(("steps", number, *path), f"there is a {kind} '{other}' already; {what}")
            elif step.own_name is not None and (other := steps.get(name.lower())):
                context.add(("steps", number, *path), f"there is a step '{other}' already; choose another name")
            stages.setdefault(name.lower(), name)
        elif step.name is not None:
            if other := stages.get(step.name.lower()) or steps.get(step.name.lower()):
                context.add(("steps", number, "name"), f"there is a step '{other}' already; choose another name")
            steps.setdefault(step.name.lower(), step.name)
        for position, emit in enumerate(step.emit or []):
            if (emit.kind, emit.name) in sinks:
                context.add(
                    ("steps", number, "emit", position, emit.kind),
                    f"'{emit.name}' is emitted to already; each window needs a name of its own",
                )
            sinks.add((emit.kind, emit.name))


def _cascade(context: CheckContext, path: Path, window: WindowSpec, before: WindowSpec) -> None:
    """A result counts in the windows that hold its own window's last moment. Those begin and end where windows before them
    begin, so each of them holds equally many. Sessions begin and end anywhere; but the gap of some behind other windows is
    longer than the time from one to the next, or each result would be a session."""
    if window.count is not None:
        return
    if window.session is not None:
        apart_ms = before.every_ms + (longer_ms_max(before.tz) if before.tz in zone_names() else 0)
        if not before.ends_anywhere and window.every_ms <= apart_ms:
            context.add(
                (*path, "session", "gap"),
                f"{format_duration(window.every_ms)} of window '{window.name}' is no longer than the "
                f"{format_duration(apart_ms)} from one window '{before.name}' to the next, so each of their results "
                "would be a session of its own; expected more",
            )
        return
    if before.ends_anywhere:
        return
    lengths: list[tuple[Path, int]] = [(("tumbling",), window.size_ms)]
    if window.sliding is not None:
        lengths = [(("sliding", "size"), window.size_ms), (("sliding", "every"), window.every_ms)]
    if window.cumulative is not None:
        lengths = [(("cumulative", "size"), window.size_ms), (("cumulative", "step"), window.every_ms)]
    every = format_duration(before.every_ms)
    if before.sliding is not None:
        every = f"the {every} between the beginnings"
    if before.cumulative is not None:
        every = f"the {every} between the ends"
    for inner, length_ms in lengths:
        if before.every_ms and length_ms % before.every_ms:
            context.add(
                (*path, *inner),
                f"{format_duration(length_ms)} of window '{window.name}' is not a multiple of "
                f"{every} of window '{before.name}' before it, whose windows would straddle",
            )
    if before.every_ms and not _begin_together(window, before):
        name, own = ("tz", f"days of {window.tz}") if window.tz else ("offset", "windows")
        begins = f"days of {before.tz}" if before.tz else f"a multiple of {format_duration(before.every_ms)}"
        begins += f" and {format_duration(before.offset_ms)}" if before.offset_ms else ""
        context.add(
            (*path, name),
            f"{own} of '{window.name}' begin inside of windows '{before.name}' before them ({begins}), which would straddle; "
            "say the same time zone, and an offset that fits",
        )


def check_revisions(context: CheckContext) -> None:
    """One window, whose result is one document that a later one can take the place of: where else late records revise is not
    known yet. Its result counts them."""
    for path, message in revision_problems(context.pipeline, context.stages, context.record_stages):
        context.add(path, message)
    context.stages = [revised_stage(stage, context.pipeline.revise_ms) for stage in context.stages]


def _retention(context: CheckContext) -> None:
    # Windows wait for the stream that is furthest behind, so the longest delay counts for all.
    delay_ms = max(one.event_time.delay for one in context.pipeline.reads)
    horizons = [stage.dedupe.within_ms for stage in context.record_stages if stage.dedupe is not None]
    needed_ms = (
        delay_ms + context.pipeline.revise_ms + max([reach_of([stage.shape for stage in context.stages]), *horizons])
    )
    if (repeats := first_dedupe([*context.record_stages, *context.stages])) is not None and repeats.compares_all:
        needed_ms -= WHOLE_RANGE_MS  # how long a batch needs its range depends on how long it runs
    for stream in context.streams:
        if stream.retention_ms != FOREVER_MS and stream.retention_ms < needed_ms:
            context.add(
                ("steps",),
                f"the windows and the delay reach back {format_duration(needed_ms)}, and stream '{stream.stream}' "
                f"keeps records for {format_duration(stream.retention_ms)} only; raise its retention to "
                f"{format_duration(needed_ms)} at least",
            )


def _begin_together(window: WindowSpec, before: WindowSpec) -> bool:
    """Whether, sizes aside, a window begins where one of those before it begins."""
    if before.tz is not None:
        return window.tz == before.tz and window.offset_ms == before.offset_ms
    if window.tz is not None:
        is_known = window.tz in zone_names()
        return not is_known or days_begin_at_multiples(window.tz, window.offset_ms, before.every_ms, before.offset_ms)
    return (window.offset_ms - before.offset_ms) % before.every_ms == 0
