"""Check that the streams that a run emits to still contain the results of the job, before it writes more.

A stream can lose its end in a power cut, and its topic can be deleted or recreated. Then results of committed slices are lost,
and the offsets of the checkpoint are after the end. The run would not see the results of an interrupted slice, and would write
them again.

A broker that lacks records only for a moment is no loss, as with streams that are read (`slices/continuity.py`).
"""

from __future__ import annotations

import time

from strandline.core.errors import LogChanged, NotFound
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.slices.continuity import POLL_S, PendingMismatch, Vector


def require_kept_results(run: JobRun) -> None:
    """Raise LogChanged unless each stream that the run emits to is the topic that was registered, and reaches as far as at the
    last checkpoint. Raises LogUnavailable, LedgerUnavailable."""
    checkpoint = run.ledger.last_checkpoint(run.job)
    emitted = checkpoint.result_offsets if checkpoint else {}
    for stream in sorted({stream for stage in run.pipeline.all_stages for stream in stage.streams}):
        doubt = PendingMismatch(lambda: time.monotonic_ns() // 1_000_000)
        while not doubt.is_settled(_loss(run, stream, emitted.get(stream, {}))):
            time.sleep(POLL_S)


def _loss(run: JobRun, stream: str, emitted: Vector) -> str | None:
    """Return a message with the records that the stream seems to have lost, and the remedy. None if none are lost.

    `emitted`: partition -> its end at the last checkpoint. Raises LogChanged if the topic was recreated.
    """
    to = f"stream {stream}, to which job {run.job} emits"
    try:
        known, present = run.ledger.stream(stream).topic_id, run.index.topic_id(stream)
        if known is not None and known != present:
            raise LogChanged(
                f"{to}, is another topic than the one that was registered (topic id {present}, known is {known}): it was deleted "
                f"and recreated. {_remedy(run.job, stream)}"
            )
        ends = run.index.ends(stream)
    except NotFound:
        return f"the topic of {to}, was deleted. {_remedy(run.job, stream)}"
    for partition, offset in emitted.items():
        if ends.get(partition, -1) < offset:
            end = f"ends at offset {ends[partition]}" if partition in ends else "is not there"
            return (
                f"partition {partition} of {to}, {end}, but results of committed slices go up to offset {offset}: the log was "
                f"cut off there. Restore it and start the job again (strandline job start {run.job}). Where it is lost: "
                f"{_remedy(run.job, stream)}"
            )
    return None


def _remedy(job: str, stream: str) -> str:
    return (
        f"Apply the pipeline with a stream of another name in place of {stream} and start the job (strandline job start {job}): "
        "it goes on there, without the results of before. To have these too, apply it under another name, with other names for "
        "all that it emits: it computes from what its input holds now."
    )
