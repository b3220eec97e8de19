"""Writes the current values of open windows to the index `NAME.open`, in a separate thread. A job never waits for this thread,
and doesn't fail if it fails.

In a worker, each bucket hands over its open windows of a stage with each slice. They replace those of the slice before. The
thread writes only changed documents, at most as often as the emission states. Documents that can't be written are dropped and
counted; the next update writes them again. In the driver, a sweep deletes the documents of closed windows, also those of
earlier runs.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from strandline.core.errors import StrandlineError
from strandline.processing.pipelines.event_time import WindowShape
from strandline.results.elasticsearch_writer import ElasticsearchWriter
from strandline.results.names import emit_of_open_index
from strandline.results.open_windows.documents import OPEN_WINDOWS_MAX, OpenShape
from strandline.results.open_windows.index import OpenIndex
from strandline.results.text_columns import join_texts
from strandline.results.writer import PROBLEM, StoreWriter

log = structlog.get_logger()

_DOCUMENTS_MAX = 2_000
"""In one request."""
_SWEEP_PAUSE_S = 60.0
"""Pause in seconds between sweeps of an index without open windows."""
_CLOSE_S = 1.0
"""Half of the time in seconds that the last sweep of such an index may take."""

Key = tuple[str, int, str, str]
"""Job, bucket, stage, emission."""


@dataclass(frozen=True)
class OpenEmission:
    """Emission that writes a stage's open windows to `NAME.open`."""

    writer: ElasticsearchWriter
    """Writer of the results."""
    shape: OpenShape
    every_s: float

    @property
    def index(self) -> OpenIndex:
        return OpenIndex(self.writer.url, self.shape.emit_name)


def open_emissions(writers: Iterable[StoreWriter], windows: WindowShape) -> list[OpenEmission]:
    """Return the emissions of open windows, for a stage with these writers and windows. Empty for a backfill."""
    return [
        OpenEmission(one, OpenShape.of(one.shape, ends_move=windows.ends_move), one.index.updates_ms / 1000)
        for one in writers
        if isinstance(one, ElasticsearchWriter) and one.index.updates_ms is not None and one.shape.is_shown
    ]


def dropped_indices(made: Iterable[str], url: str, emissions: Iterable[OpenEmission]) -> list[OpenIndex]:
    """Return the job's indices for open windows whose emission was removed, or no longer shows open windows."""
    shown = {one.shape.emit_name for one in emissions}
    names = [emit_of_open_index(index) for index in sorted(made)]
    return [OpenIndex(url, name) for name in names if name is not None and name not in shown]


@dataclass
class OpenCounts:
    """Numbers of written and dropped documents of open windows."""

    written: int = 0
    dropped: int = 0
    """Documents that were not written: the store did not take them, or there were too many."""
    why: str = ""
    """Reason why the last dropped documents were not written."""
    has_failed: bool = False
    """True if the store failed, so that the update must be repeated unless a newer one follows."""


@dataclass
class _BucketWindows:
    """The open windows of one bucket in one emission."""

    emission: OpenEmission
    epoch: int = 0
    number: int = 0
    rows: Callable[[], pa.RecordBatch] | None = None
    """Returns the rows of the next update. None if there is none."""
    next_s: float = 0.0
    is_created: bool = False
    """True if the index is known to exist."""
    shown: dict[str, bytes] = field(default_factory=dict)
    """Id -> digest of each document in the store. The digest is empty if the store may have lost the document."""

    def mark_suspect(self) -> None:
        """Note that the index may have been deleted, so that all documents are written again. The ids stay, so that documents of
        closed windows are deleted if the index still has them."""
        self.is_created = False
        self.shown = dict.fromkeys(self.shown, b"")


class OpenWindows:
    """Writes the open windows of all buckets of one process, in one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._windows: dict[Key, _BucketWindows] = {}
        self._counts = OpenCounts()
        self._thread: threading.Thread | None = None

    def submit(
        self, job: str, bucket: int, emission: OpenEmission, epoch: int, number: int, rows: Callable[[], pa.RecordBatch]
    ) -> None:
        """Hand over the open windows of a bucket after slice `number`, instead of those of the slice before. Doesn't wait for the
        store. `rows`: returns the windows as results; called in another thread when they are written."""
        shape = emission.shape
        with self._changed:
            windows = self._windows.setdefault((job, bucket, shape.stage, shape.emit_name), _BucketWindows(emission))
            windows.emission, windows.epoch, windows.number, windows.rows = emission, epoch, number, rows
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="open-windows", daemon=True)
                self._thread.start()

    def take_counts(self) -> OpenCounts:
        """Return the counts of documents since the last call."""
        with self._changed:
            counts, self._counts = self._counts, OpenCounts()
            return counts

    def _run(self) -> None:
        while True:
            with self._changed:
                waiting = [one for one in self._windows.values() if one.rows is not None]
                windows = min(waiting, key=lambda one: one.next_s, default=None)
                left_s = None if windows is None else windows.next_s - self._clock()
                if windows is None or (left_s is not None and left_s > 0):
                    self._changed.wait(left_s)
                    continue
                rows, windows.rows = windows.rows, None
                emission, epoch, number = windows.emission, windows.epoch, windows.number
                windows.next_s = self._clock() + emission.every_s
            assert rows is not None
            counts = self.show(windows, emission, epoch, number, rows)
            with self._changed:
                self._counts.written += counts.written
                self._counts.dropped += counts.dropped
                self._counts.why = counts.why or self._counts.why
                if counts.has_failed and windows.rows is None:
                    windows.rows = rows

    def show(
        self,
        windows: _BucketWindows,
        emission: OpenEmission,
        epoch: int,
        number: int,
        rows: Callable[[], pa.RecordBatch],
    ) -> OpenCounts:
        """Write the changed documents of one bucket's open windows, and delete those of windows that it no longer has.

        1. Make the documents, as for results. A result that lacks a required value has no document.
        2. Leave out the documents that the store has already.
        3. Write the remaining documents in bulks. After the first failure, stop: the next update writes all documents again,
           because the store may have lost some.
        """
        counts = OpenCounts()
        try:
            wanted = self._documents(emission, epoch, number, rows(), counts)
            new = {one: source for one, (digest, source) in wanted.items() if windows.shown.get(one) != digest}
            gone = [one for one in windows.shown if one not in wanted]
            index, left = emission.index, list(new)
            if (new or gone) and not windows.is_created:
                index.make_sure(emission.shape, emission.writer.index)
                if emission.writer.made is not None:
                    emission.writer.made.add(index.name)
                windows.is_created = True
            while left or gone:
                part, left = left[:_DOCUMENTS_MAX], left[_DOCUMENTS_MAX:]
                refused = index.write({one: new[one] for one in part}, gone[:_DOCUMENTS_MAX], number)
                for one in gone[:_DOCUMENTS_MAX]:
                    del windows.shown[one]
                gone = gone[_DOCUMENTS_MAX:]
                if refused:
                    counts.dropped += refused + len(left)
                    counts.why = f"index {index.name} did not take {refused} documents"
                    counts.has_failed = True
                    windows.mark_suspect()
                    return counts
                windows.shown |= {one: wanted[one][0] for one in part}
                counts.written += len(part)
        except StrandlineError as error:
            counts.dropped, counts.why, counts.has_failed = counts.dropped + 1, str(error), True
            windows.mark_suspect()
        except Exception as error:  # whatever it is, results are none the worse for it
            counts.dropped += 1
            counts.why = f"{type(error).__name__}: {error}"
            log.exception("open windows are not shown", stage=emission.shape.stage)
        return counts

    def _documents(
        self, emission: OpenEmission, epoch: int, number: int, rows: pa.RecordBatch, counts: OpenCounts
    ) -> dict[str, tuple[bytes, bytes]]:
        """Return id -> (digest, document). The digest omits the fields that change with each slice."""
        good = rows.filter(pc.is_null(rows.column(PROBLEM)))
        if good.num_rows > OPEN_WINDOWS_MAX:
            counts.dropped += good.num_rows - OPEN_WINDOWS_MAX
            counts.why = (
                f"more than {OPEN_WINDOWS_MAX:,} windows of stage {emission.shape.stage} are open in one bucket"
            )
            good = good.slice(0, OPEN_WINDOWS_MAX)
        if not good.num_rows:
            return {}
        columns, _ = emission.shape.columns(good, epoch, number).sorted_out()
        bodies = join_texts(columns.pieces[:-1]).to_pylist() if len(columns) else []
        origin = columns.pieces[-1]
        assert isinstance(origin, bytes), "the same for all"
        digests = [hashlib.blake2b(body, digest_size=16).digest() for body in bodies]
        return {
            one: (digest, body + origin)
            for one, digest, body in zip(columns.ids.to_pylist(), digests, bodies, strict=True)
        }


_OF_PROCESS: dict[int, OpenWindows] = {}


def open_windows() -> OpenWindows:
    """Return the OpenWindows of this process."""
    return _OF_PROCESS.setdefault(os.getpid(), OpenWindows())


class ClosedWindowsSweep:
    """Deletes from `NAME.open` the documents of closed windows, and all documents of emissions that no longer write open windows.
    Runs in a thread of the driver, from the first call of `closed` to `close`."""

    def __init__(self, job: str, emissions: Sequence[OpenEmission], dropped: Sequence[OpenIndex] = ()) -> None:
        """`emissions`: documents of their closed windows are deleted. `dropped`: all documents of the job in these indices are
        deleted. Both happen in `sweep`."""
        self._job = job
        self._emissions = list(emissions)
        self._dropped = list(dropped)
        self._changed, self._ends = threading.Event(), threading.Event()
        self._closes_ms: int | None = None
        self._thread: threading.Thread | None = None

    def closed(self, closes_ms: int | None) -> None:
        """Make the thread delete the documents of windows that end at or before this time, without waiting for it. None: no
        window has closed yet, so nothing is deleted."""
        if closes_ms is None or closes_ms == self._closes_ms or not (self._emissions or self._dropped):
            return
        self._closes_ms = closes_ms
        self._changed.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="closed-windows", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Delete documents a last time, and end the thread. Waits at most two update intervals."""
        self._ends.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(2 * max((one.every_s for one in self._emissions), default=_CLOSE_S))

    def _run(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            is_last = self._ends.is_set()
            self.sweep()
            if is_last:
                return
            self._ends.wait(min((one.every_s for one in self._emissions), default=_SWEEP_PAUSE_S))

    def sweep(self) -> None:
        """Delete the documents of closed windows. The next sweep repeats deletions that fail."""
        closes_ms = self._closes_ms
        if closes_ms is None:
            return
        for index in self._dropped:  # each time: a worker may still have written what the version before left with it
            with suppress(StrandlineError):
                while index.forget_closed(self._job, None):
                    pass
        for emission in self._emissions:
            with suppress(StrandlineError):
                while emission.index.forget_closed(self._job, closes_ms):
                    pass
