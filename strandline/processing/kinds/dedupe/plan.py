"""The check of `dedupe` and of `distinct`."""

from __future__ import annotations

from strandline.core.documents import Path, path_text
from strandline.processing.kinds.dedupe.document import DedupeSpec, DistinctSpec
from strandline.processing.kinds.dedupe.step import Dedupe
from strandline.processing.pipelines.checks.check_context import CheckContext, step_number
from strandline.processing.pipelines.row_step import WHOLE_RANGE_MS


def check(context: CheckContext, path: Path, spec: DedupeSpec | DistinctSpec) -> None:
    """Check `dedupe` or `distinct`: see `_check`. Also add a problem to `context` for a `distinct` outside of a batch: it
    compares all records, so its state would grow forever."""
    if isinstance(spec, DedupeSpec):
        _check(context, path, spec.by, spec.within)
        return
    if not context.pipeline.is_batch:
        context.add(
            path,
            "keeps every record in memory, so only a batch can use it; add an end to the input, as 'end: latest'. A job without "
            f"an end can leave out duplicates within a time: dedupe: {{by: [{', '.join(spec.by)}], within: 1h}}",
        )
    _check(context, path, spec.by, WHOLE_RANGE_MS)


def _check(context: CheckContext, path: Path, by: list[str], within_ms: int) -> None:
    """Add a problem to `context` if the pipeline has another dedupe, or if the step is after a window or a union. Also add a
    problem if it doesn't compare the key of the stream: with the key, all duplicates of a record are in one partition."""
    if (window := context.window_before) is not None:
        context.add(
            path, f"is after window '{window.name}', whose results contain no duplicates; move it before the window"
        )
    if context.dedupes:
        context.add(
            path,
            f"the pipeline already has a dedupe, {path_text(context.dedupes[0])}, and can have only one; read its records with "
            "'from', or dedupe by other fields in another pipeline",
        )
    context.dedupes.append(path)
    for number, name in enumerate(by):
        context.check_key((*path, "by", number), name)
    if window is not None:
        return
    streams = [context.streams[one.stream] for one in context.output.paths]
    if len(streams) > 1:
        context.add(
            path,
            f"is after the union of {', '.join(one.stream for one in streams)}, but all duplicates of a record must be in one "
            f"partition of one stream; move it before the union, with 'from: {streams[0].stream}'",
        )
        return
    read = streams[0]
    key, stream = read.key, read.stream
    if read.partitions > 1 and key is None:
        context.add(
            path,
            f"stream '{stream}' has no key, so a repeated record can be in another partition, and the log has no order between "
            "partitions; give the stream a 'key', or 'partitions: 1'",
        )
    elif read.partitions > 1 and key not in by:
        context.add(
            (*path, "by"),
            f"expected the key of stream '{stream}', '{key}', among the fields: it puts a record and its duplicates into one "
            f"partition; write [{', '.join([str(key), *by])}]",
        )
    context.end_step(Dedupe(step_number(path), tuple(by), within_ms))
