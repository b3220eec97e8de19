"""The loop of a run whose slices are each computed by one task: plan a slice, run a batch, commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from strandline.core.errors import StrandlineError, TransientError
from strandline.processing.emission.commit import SliceCommitter
from strandline.processing.emission.keyed_task import BucketOutcome
from strandline.processing.emission.member_outcomes import MemberOutcome
from strandline.processing.slices.rewind import RewindPlan
from strandline.processing.slices.spark_offset import slice_of_offset
from strandline.processing.source.data_source import SliceStreamReader, SourceInputPartition
from strandline.processing.source.member_slices import MemberSlice

log = structlog.get_logger()

TRIES = 4
"""Number of attempts at a batch that fails with a TransientError. Spark attempts a task of a query as often."""
_STOP_S = 30.0
"""Maximum time in seconds that the loop has to end."""


class Batches(Protocol):
    """Runs batches of slices. `PoolBatches` is one."""

    def run(self, tasks: Sequence[Sequence[MemberSlice]]) -> list[MemberOutcome]:
        """Process the slices, and return the outcome of each member."""

    def cancel(self) -> None:
        """End the batch that another thread runs."""


class SliceLoop:
    """Runs the slices of one run in a thread, with the methods of a streaming query that `watch_query` uses."""

    def __init__(
        self,
        job: str,
        epoch: int,
        config: str,
        plan: RewindPlan,
        reader: SliceStreamReader,
        batches: Batches,
        committer: SliceCommitter,
    ) -> None:
        """`config`: digest of the config of the run. `reader`: plans the slices, with one task for each."""
        self._job, self._epoch, self._config, self._plan = job, epoch, config, plan
        self._reader, self._batches, self._committer = reader, batches, committer
        self._is_stopping = threading.Event()
        self._error: StrandlineError | None = None
        self._thread = threading.Thread(target=self._run, name=f"slices-{job}", daemon=True)

    def start(self) -> SliceLoop:
        """Start the thread."""
        self._thread.start()
        return self

    @property
    def isActive(self) -> bool:  # noqa: N802 - the name in pyspark
        """True while the loop runs."""
        return self._thread.is_alive()

    def exception(self) -> StrandlineError | None:
        """The error that ended the loop. None if it runs, or if it was stopped."""
        return self._error

    def stop(self) -> None:
        """Stop the loop, and wait until it has ended. A batch that is running is cancelled: the next run repeats its slice."""
        self._is_stopping.set()
        self._reader.interrupt()
        self._batches.cancel()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        try:
            offset = self._reader.initialOffset()
            while not self._is_stopping.is_set():
                end = self._reader.latestOffset(offset)
                if end != offset and not self._is_stopping.is_set():
                    self._process(offset, end)
                    offset = end
        except StrandlineError as error:
            if not self._is_stopping.is_set():
                self._error = error
        except Exception as error:
            log.exception("the loop of the slices failed", job=self._job, epoch=self._epoch)
            self._error = StrandlineError(f"{type(error).__name__}: {error}")
        finally:
            self._reader.stop()

    def _process(self, start: dict[str, int], end: dict[str, int]) -> None:
        """Run one batch and commit it. Raises StrandlineError."""
        before, number = slice_of_offset(start), slice_of_offset(end)
        (part,) = self._reader.partitions(start, end)
        assert isinstance(part, SourceInputPartition)
        assert part.work is not None, "one task has the work"
        one = MemberSlice(
            job=self._job,
            epoch=self._epoch,
            config=self._config,
            number=number,
            state_before=before if before >= self._plan.slice_first else None,
            pieces=tuple(part.pieces),
            is_new=part.is_new,
            restores=part.restores,
            work=part.work,
        )
        self._committer.process(number, lambda: [outcome_of(one, self._batches.run, self._is_stopping.is_set)])


def outcome_of(
    one: MemberSlice,
    run: Callable[[Sequence[Sequence[MemberSlice]]], list[MemberOutcome]],
    is_stopping: Callable[[], bool],
) -> BucketOutcome:
    """Run a batch with this slice alone, and return its outcome. Repeat it after a TransientError, unless `is_stopping`. Raises
    the error of the last attempt."""
    for attempt in range(1, TRIES + 1):
        try:
            (outcome,) = run([[one]])
            if outcome.failure is None:
                assert outcome.done is not None
                return outcome.done
            raise outcome.failure.error
        except TransientError as error:
            if attempt == TRIES or is_stopping():
                raise
            log.warning("the slice is tried again", job=one.job, slice=one.number, attempt=attempt, error=str(error))
    raise AssertionError(
        "the loop ended without a result, though its last attempt returns or raises; report this as a bug"
    )
