"""Search for results that the ledger can't know, before a run writes anything.

A ledger that was restored from an older copy, or that lost its last commits in a failover, doesn't contain slices whose results
were emitted. The job would plan these slices again, and differently, and would emit their windows again with other values. If
the lost slices were already planned again under the same numbers, the digest of the slice in each result shows the loss. An
interrupted slice is not such a case: the ledger contains it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from strandline.core.errors import LedgerBehind
from strandline.core.record_headers import (
    HEADER_EMISSION,
    HEADER_EPOCH,
    HEADER_JOB,
    HEADER_SLICE_DIGEST,
    dead_letter_topic,
)
from strandline.ledger.states import CheckpointRow, SliceRow
from strandline.log.messages import LogMessage, last_records
from strandline.processing.emission.result_stream_writer import result_header
from strandline.processing.pipelines.checked_pipeline import aliases_of
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.pipelines.stages import Emit
from strandline.results.newer_documents import newer_document, unknown_generation
from strandline.results.sinks.registry import sink_and_name

LAST_SLICES = 20
"""Number of the last slices whose results are compared with the ledger."""


@dataclass(frozen=True)
class KnownSlices:
    """The end of a job's slices, as the ledger contains it."""

    last: int
    """Number of the last slice; 0 if there is none."""
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """End of the last slice."""
    digests: Mapping[int, str] = field(default_factory=dict)
    """Number -> digest of the last LAST_SLICES slices."""
    checkpoint: CheckpointRow | None = None
    """The last checkpoint."""
    before: CheckpointRow | None = None
    """The checkpoint before the slices in `digests`. None if the ledger contains none."""

    @staticmethod
    def of(run: JobRun) -> KnownSlices:
        ledger, job = run.ledger, run.job
        last = ledger.last_slice(job)
        if last is None:
            return KnownSlices(0)
        slices: list[SliceRow] = ledger.slices(job, last.number - LAST_SLICES + 1, last.number)
        before = ledger.checkpoints(job, limit=1, before=slices[0].number)
        return KnownSlices(
            last.number,
            last.offsets,
            {one.number: one.digest for one in slices},
            ledger.last_checkpoint(job),
            before[0] if before else None,
        )

    def contradiction(self, emission: int, digest: str) -> str | None:
        """Return why results of this emission are not of a slice in the ledger; None if they can be. `digest`: digest of the
        slice that emitted them, empty if the store doesn't contain it."""
        if emission > self.last:
            return f"results of emission {emission}"
        if digest and self.digests.get(emission, digest) != digest:
            return f"results of emission {emission} of a slice with other records or another watermark"
        return None


def require_newest_ledger(run: JobRun, index_url: str | None) -> None:
    """Raise LedgerBehind if a store contains results or dead letters of the job that the ledger can't know.

    They come from a later run, a later slice, a slice that was planned differently, or a record that no slice contains.

    Looks at the streams of results, the dead letters, other sinks that can be queried, and the index at `index_url` (None:
    results go elsewhere). Raises LogUnavailable, SinkUnavailable, IndexUnavailable.
    """
    known = KnownSlices.of(run)
    found = (
        _newer_result(run, known)
        or _newer_letter(run, known)
        or _newer_row(run, known)
        or (index_url and _newer_document(run, known, index_url))
    )
    if found:
        slices = f"slices up to {known.last}" if known.last else "no slice"
        raise LedgerBehind.of(run.job, f"it contains {slices} and {run.epoch - 1} runs before this one, and {found}")


def _newer_result(run: JobRun, known: KnownSlices) -> str | None:
    before = known.checkpoint.result_offsets if known.checkpoint else {}
    for stream in sorted({stream for stage in run.pipeline.all_stages for stream in stage.streams}):
        for message in last_records(
            run.settings.kafka_bootstrap,
            run.index,
            stream,
            before.get(stream, {}),
            lambda one: result_header(one, HEADER_JOB) == run.job,
        ):
            emission, epoch = int(result_header(message, HEADER_EMISSION)), int(result_header(message, HEADER_EPOCH))
            if epoch > run.epoch:
                return f"stream {stream} contains results of emission {emission} by run {epoch}"
            if newer := known.contradiction(emission, result_header(message, HEADER_SLICE_DIGEST)):
                return f"stream {stream} contains {newer}, by run {epoch}"
    return None


def _newer_letter(run: JobRun, known: KnownSlices) -> str | None:
    """Return evidence among the dead letters: a record that is in no slice of the ledger. None if there is none. Dead letters of
    refused results don't count, because they name no record."""
    topic = dead_letter_topic(run.job)
    before = known.checkpoint.dead_letter_offsets if known.checkpoint else {}
    for message in last_records(run.settings.kafka_bootstrap, run.index, topic, before, _is_of_record):
        stream = result_header(message, "stream")
        partition, offset = int(result_header(message, "partition")), int(result_header(message, "offset"))
        if offset >= known.offsets.get(stream, {}).get(partition, 0):
            return f"{topic} contains a dead letter of offset {offset} of stream {stream}, partition {partition}"
    return None


def _is_of_record(message: LogMessage) -> bool:
    return result_header(message, "offset").isdecimal()


def _newer_row(run: JobRun, known: KnownSlices) -> str | None:
    """Return evidence in the sinks that are neither indices nor streams: an emission that the ledger can't know. None if there is
    none. Their rows don't contain the run."""
    first = min(known.digests, default=1)
    for stage in run.pipeline.all_stages:
        for emit in stage.emits:
            for emission, digest in emissions_from(run, stage.name, emit, first) or ():
                if newer := known.contradiction(emission, digest):
                    return f"{emit.kind} {emit.name} contains {newer}"
    return None


def emissions_from(run: JobRun, stage: str, emit: Emit, first: int) -> Sequence[tuple[int, str]] | None:
    """Return (emission, digest of its slice) of the last emissions, from `first` on. None if the sink can't be queried here: it
    is an index, a stream, or the sink of a package that doesn't support it. Raises SinkUnavailable."""
    sink, name = sink_and_name(emit)
    return sink.emissions_from(run.settings, run.job, stage, name, first)


def _newer_document(run: JobRun, known: KnownSlices, index_url: str) -> str | None:
    generation = run.ledger.job(run.job).generation
    backfilled = {row.generation for row in run.ledger.backfills(run.job)}
    for stage, aliases in aliases_of(run.pipeline).items():
        for alias in aliases:
            unknown = unknown_generation(index_url, alias, run.job, backfilled, generation)
            if unknown is not None:
                return f"the index of {alias} contains results of generation {unknown}, of a reset or a backfill"
            origin = newer_document(
                index_url,
                alias,
                run.job,
                epoch=run.epoch,
                emission=known.last,
                after_ms=emitted_up_to(run, known.before).get(stage, 0),
                generation=generation,
                digests=known.digests,
            )
            if origin:
                emission, epoch = origin["emission"], origin["epoch"]
                newer = (
                    known.contradiction(emission, origin.get("slice_digest", "")) or f"results of emission {emission}"
                )
                return f"the index of {alias} contains {newer}, by run {epoch}"
    return None


def emitted_up_to(run: JobRun, checkpoint: CheckpointRow | None) -> dict[str, int]:
    """Return the event time (stage -> ms) up to which each stage had emitted at this checkpoint. Later slices emit nothing older,
    unless late records revise results."""
    if checkpoint is None:
        return {}
    emitted = dict(checkpoint.emitted)
    if checkpoint.closes_ms is not None:
        # Records below the watermark are late.
        emitted |= {stage.name: checkpoint.closes_ms - 1 for stage in run.pipeline.record_stages}
    return emitted
