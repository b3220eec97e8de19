"""The check of `dedupe` and of `distinct`."""

from __future__ import annotations

from strandline.core.documents import Path, path_text
from strandline.processing.kinds.dedupe.document import DedupeSpec, DistinctSpec
from strandline.processing.kinds.dedupe.step import Dedupe
from strandline.processing.pipelines.checks.check_context import CheckContext, step_number
from strandline.processing.pipelines.row_step import WHOLE_RANGE_MS


def check(context: CheckContext, path: Path, spec: DedupeSpec | DistinctSpec) -> None:
    """A `distinct` is a dedupe over the whole range: only where that has an end, or what is remembered would grow for ever."""
    if isinstance(spec, DedupeSpec):
        _check(context, path, spec.by, spec.within)
        return
    if not context.pipeline.is_batch:
        context.add(
            path,
            "remembers every record, so only a batch may have it: add an end to the input, as 'end: latest'; a job that goes "
            f"on leaves repeats out that come within a time: dedupe: {{by: [{', '.join(spec.by)}], within: 1h}}",
        )
    _check(context, path, spec.by, WHOLE_RANGE_MS)


def _check(context: CheckContext, path: Path, by: list[str], within_ms: int) -> None:
    """One for all branches, before the first window, by the stream's key at least: so that repeats are in one partition."""
    if (window := context.window_before) is not None:
        context.add(
            path, f"stands behind window '{window.name}', whose results come once each; move it before the window"
        )
    if context.dedupes:
        context.add(
            path,
            f"there is a dedupe already, {path_text(context.dedupes[0])}, and a pipeline has one: take from it by "
            "'from', or dedupe by other fields in a pipeline of its own",
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
            f"stands behind the union of {', '.join(one.stream for one in streams)}, and repeats are in one partition of one "
            f"stream; move it before the union, with 'from: {streams[0].stream}'",
        )
        return
    read = streams[0]
    key, stream = read.key, read.stream
    if read.partitions > 1 and key is None:
        context.add(
            path,
            f"stream '{stream}' has no key, so a record that is sent again may come to another partition, and the log has no "
            "order between partitions; give the stream a 'key', or 'partitions: 1'",
        )
    elif read.partitions > 1 and key not in by:
        context.add(
            (*path, "by"),
            f"expected '{key}' among the fields, the key of stream '{stream}', which a record that is sent again has, too: "
            f"it says in which partition both are; write [{', '.join([str(key), *by])}]",
        )
    context.end_step(Dedupe(step_number(path), tuple(by), within_ms))
