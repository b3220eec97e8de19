"""Strandline's own sinks in tests that run for each sink."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from strandline.processing.pipelines.stages import Emit
from strandline.results.sinks.registry import PACKAGE, SINKS, form_of
from strandline.results.writer import CommittedWriter, StoreWriter, WriteReport

OWN_STORES = tuple(kind for kind in SINKS if kind != PACKAGE and form_of(kind).is_elsewhere)
"""Strandline's sinks whose results are neither documents of an index nor records of a stream."""


def emit_to(kind: str, directory: Path) -> Emit:
    """Return an emission to this sink, whose results are below the directory or in a table."""
    return Emit(kind, str(directory / "results") if form_of(kind).named == "path" else "minutes")


def write_and_commit(
    writer: StoreWriter, batches: Sequence[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
) -> WriteReport:
    """Write the batches as the only task of a slice, and commit them if the writer has a commit."""
    report = writer.write_batches(batches, epoch, emission, slice_digest)
    if isinstance(writer, CommittedWriter):
        writer.commit(emission, epoch, report.parts, slice_digest)
    return report
