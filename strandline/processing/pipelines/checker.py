"""The check of a pipeline against the streams that it reads. It starts no Spark, so errors are found before the pipeline runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from strandline.core.documents import COLUMNS_MAX, Path, YamlDocument, did_you_mean
from strandline.core.errors import PROBLEMS_MAX, InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.states import EventTimeRule
from strandline.processing.pipelines.checked_pipeline import CheckedInput, CheckedPipeline
from strandline.processing.pipelines.checks.check_context import CheckContext, StepOutput
from strandline.processing.pipelines.checks.stages import check_emission, check_results
from strandline.processing.pipelines.checks.whole import check_revisions, check_windows_together
from strandline.processing.pipelines.kind_registry import kind_of, part_of
from strandline.processing.pipelines.lookups.lookup_shapes import LookupShape
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.stages import RecordPath
from strandline.processing.pipelines.step_graph import stream_place


def check(
    pipeline: PipelineSpec,
    streams: StreamSpec | Sequence[StreamSpec],
    document: YamlDocument | None = None,
    lookups: Mapping[str, LookupShape] | None = None,
) -> CheckedPipeline:
    """Return the pipeline with everything that follows from its streams: types, stages, and the columns to read.

    Called when a job is submitted, and again when its runner starts. `streams`: the streams of the pipeline, in its order.
    `document`: the document from which the pipeline was just read; it supplies line numbers. `lookups`: the existing lookups.
    Raises InvalidDocument with all problems.
    """
    given = [streams] if isinstance(streams, StreamSpec) else list(streams)
    return _run(CheckContext(pipeline, given, document, lookups or {}))


def as_far_as_known(
    pipeline: PipelineSpec, streams: Sequence[StreamSpec], lookups: Mapping[str, LookupShape]
) -> CheckedPipeline:
    """Return a checked pipeline without the expressions that `check` refuses.

    For a stored pipeline that an earlier, less strict version accepted. The result can be compared with the next version, but
    can't be run.
    """
    return _run(CheckContext(pipeline, list(streams), None, lookups), is_strict=False)


def _run(context: CheckContext, *, is_strict: bool = True) -> CheckedPipeline:
    """Check a pipeline, and return it in its checked form.

    1. Check the streams and their event times, then each step in order, then the windows together.
    2. If `is_strict`, raise InvalidDocument with all problems. Otherwise leave out the parts with problems.
    """
    for at, stream in enumerate(context.streams):
        _event_time(context, at, stream)
    from_streams = [StepOutput(dict(stream.types), (RecordPath(at, ()),)) for at, stream in enumerate(context.streams)]
    outputs = list[StepOutput]()
    for number, step in enumerate(context.pipeline.steps):
        path: Path = ("steps", number)
        taken = [
            outputs[one] if (read := stream_place(one)) is None else from_streams[read]
            for one in context.sources[number]
        ]
        is_union = len(step.taken) > 1
        context.output = context.united((*path, "from"), step.taken, taken) if is_union else taken[0]
        context.taken = taken
        if step.keyword is not None:
            part_of(kind_of(step.keyword), "plan").check(context, (*path, step.keyword), step.value)
            if step.stage is not None:
                check_results(context, path, step)
        elif step.emit is not None:
            check_emission(context, path, step)
        outputs.append(context.output)
        if len(context.columns) > COLUMNS_MAX:
            context.add(
                path, f"leads to {len(context.columns):,} columns; expected at most {COLUMNS_MAX:,} in one step"
            )
        if is_strict and (len(context.columns) > COLUMNS_MAX or len(context.problems) > PROBLEMS_MAX):
            raise InvalidDocument(context.problems)
    check_windows_together(context)
    if context.pipeline.revise_ms:
        check_revisions(context)
    if context.problems and is_strict:
        raise InvalidDocument(context.problems)
    inputs = tuple(_input(context, at, stream) for at, stream in enumerate(context.streams))
    rule = inputs[0].event_time_rule
    if len(inputs) > 1:
        rule = replace(rule, by_stream=tuple((one.name, one.event_time_rule) for one in inputs))
    checked = CheckedPipeline(
        spec=context.pipeline,
        inputs=inputs,
        stages=tuple(context.stages),
        record_stages=tuple(context.record_stages),
        event_time_rule=replace(rule, revise_ms=context.pipeline.revise_ms),
        lookups=tuple((name, context.lookups[name].version) for name in context.pipeline.lookups()),
    )
    if not context.pipeline.revise_ms:
        return checked
    return replace(checked, event_time_rule=replace(checked.event_time_rule, revises=checked.digest))


def _event_time(context: CheckContext, at: int, stream: StreamSpec) -> None:
    read = context.pipeline.reads[at]
    if read.stream != stream.stream:
        context.add((*context.pipeline.path_of_input(at), "stream"), f"reads '{read.stream}', not '{stream.stream}'")
    source = read.event_time.source
    name, path = source.field, (*context.pipeline.path_of_event_time(at), "field")
    if name is None:
        return
    field = stream.fields.get(name)
    if field is None:
        known = [n for n, f in stream.fields.items() if f.type == "timestamp"] or stream.fields
        context.add(path, f"'{name}' is not a field of stream '{stream.stream}'{did_you_mean(name, known)}")
    elif field.type != "timestamp":
        remedy = f"declare it as one ({name}: timestamp)"
        if field.type == "string":
            remedy += (
                ", or, if its form is not ISO 8601, convert it in another pipeline before "
                "(docs/formats.md, Times in other forms)"
            )
        context.add(path, f"'{name}' is a {field.type}; event time needs a field of type timestamp: {remedy}")
    elif not field.required and not source.or_log:
        context.add(
            path,
            f"'{name}' is optional in stream '{stream.stream}'; make it required there, or write 'else: log', so that records "
            "without it have their arrival time",
        )
    else:
        context.columns_read[at].add(name)


def _input(context: CheckContext, at: int, stream: StreamSpec) -> CheckedInput:
    event_time = context.pipeline.reads[at].event_time
    computed, emitted = context.columns_read[at], context.columns_emitted[at]
    return CheckedInput(
        stream,
        tuple(name for name in stream.fields if name in computed or name in emitted),
        tuple(name for name in stream.fields if name in computed),
        event_time.source,
        EventTimeRule(event_time.delay, event_time.idle_timeout, event_time.max_ahead, event_time.watermark),
    )
