"""The files and tables that an audit compares. Computed from the plan, before any of them is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from strandline.processing.audit.index_reader import EndRange
from strandline.processing.audit.plan import AuditPlan
from strandline.processing.audit.reconciliation import EVER_MS
from strandline.processing.emission.result_shapes import document_shape
from strandline.processing.pipelines.calendars import DAY_MS
from strandline.results.sinks.registry import sink_and_name, store_of
from strandline.results.sinks.sink import Sink
from strandline.results.sinks.typed_rows import own_columns


@dataclass(frozen=True)
class AuditedSink:
    """Results of one job in a sink that is neither an index nor a stream."""

    store: str
    """Name in reports."""
    sink: Sink
    name: str
    """Name of the emission in the sink, for example a path."""
    stages: tuple[str, ...]
    """Stages whose results it contains. Several versions can have several stages."""
    types: Mapping[str, str]
    """Columns with their types in a stream's schema, for all versions."""
    fields: tuple[str, ...]
    """Columns that are fields of the results."""
    requested: EndRange
    """Range of the times of the rows to compare."""
    after_ms: int | None
    """Rows of windows that end at or before this time needn't be read."""
    emission_first: int
    """Manifests of earlier slices needn't be read. A table can contain rows of an earlier incarnation of the job."""


def audited_sinks(plan: AuditPlan) -> list[AuditedSink]:
    """Return the sinks, other than indices and streams, to which an audited slice emitted."""
    found: dict[str, AuditedSink] = {}
    for span in plan.spans:
        if span.is_backfill:
            continue
        records = {stage.name for stage in span.pipeline.record_stages}
        for stage in span.pipeline.all_stages:
            for emit in stage.emits:
                sink, name = sink_and_name(emit)
                if not (sink.is_elsewhere and sink.is_compared):
                    continue
                shape = document_shape(span.pipeline, stage, emit, span.version)
                scope = plan.scope.get(stage.name)
                one = AuditedSink(
                    store=store_of(emit),
                    sink=sink,
                    name=name,
                    stages=(stage.name,),
                    types={**own_columns(shape), **dict(shape.fields)},
                    fields=tuple(name for name, _ in shape.fields),
                    requested=plan.requested,
                    after_ms=None if scope is None else scope.after_ms,
                    emission_first=plan.slice_first if stage.name in records else plan.slice_whole,
                )
                known = found.get(one.store)
                found[one.store] = one if known is None else _both(known, one)
    return list(found.values())


def _both(one: AuditedSink, other: AuditedSink) -> AuditedSink:
    """Return a sink to which two versions emit."""
    afters = [sink_read.after_ms for sink_read in (one, other) if sink_read.after_ms is not None]
    return replace(
        other,
        stages=tuple(dict.fromkeys((*one.stages, *other.stages))),
        types={**one.types, **other.types},
        fields=tuple(dict.fromkeys((*one.fields, *other.fields))),
        after_ms=min(afters) if len(afters) == 2 else None,
        emission_first=min(one.emission_first, other.emission_first),
    )


def removed_before(standing: Mapping[tuple[str, int], int], absent: Iterable[str]) -> dict[str, int]:
    """Return store -> the time before which its owner has removed everything.

    A process that removes old files removes the oldest first. So the files of a day without any file were removed if no earlier
    day has a file. Otherwise they are lost.

    Args:
        standing: (store, day since 1970) that a manifest names -> number of files that still exist.
        absent: Stores that contain nothing.
    """
    found = dict.fromkeys(absent, EVER_MS)
    kept: set[str] = set()
    for store, day in sorted(standing):
        if standing[store, day]:
            kept.add(store)
        elif store not in kept:
            found[store] = max(found.get(store, 0), (day + 1) * DAY_MS)
    return found
