"""The parts in which an audit reads. If there is enough to read, they run in several processes, because decoding takes most
time."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Protocol

from strandline.core.errors import TransientError
from strandline.processing.audit.event_times import LatestEvents

_ROWS_FOR_PROCESSES = 300_000
"""With fewer rows a second process costs more than it saves."""


@dataclass
class Account:
    """Counts and times of the data that was read from the log or the stores."""

    records: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    """Reason -> records."""
    latest: LatestEvents = field(default_factory=dict)
    results: Counter[str] = field(default_factory=Counter)
    """Stage -> results, for stages of records."""
    standing: Counter[tuple[str, int]] = field(default_factory=Counter)
    """(store of files, day since 1970) -> number of existing files that a manifest of this day names."""

    def add(self, other: Account) -> None:
        """Add the account of another part."""
        self.records += other.records
        self.rejected.update(other.rejected)
        self.latest.update(other.latest)
        self.results.update(other.results)
        self.standing.update(other.standing)


class Part(Protocol):
    """One unit of an audit's reading, of bounded size. Sent to another process by pickle."""

    @property
    def rows(self) -> int:
        """Approximate number of rows that it reads."""

    def run(self) -> Account:
        """Read the part, and write its rows to its tables."""


def run_parts(parts: Sequence[Part]) -> Iterator[Account]:
    """Run each part once, and yield its account, in the order in which the parts end.

    Raises the error of a part, or TransientError if its process was killed.
    """
    processes = min(len(os.sched_getaffinity(0)), len(parts))
    if processes <= 1 or sum(part.rows for part in parts) < _ROWS_FOR_PROCESSES:
        yield from (part.run() for part in parts)
        return
    # A fork would copy the locked locks of Kafka's and DuckDB's threads.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn, initializer=_end_with_parent) as pool:
        try:
            for done in as_completed([pool.submit(part.run) for part in parts]):
                yield done.result()
        except BrokenProcessPool as error:
            raise TransientError(
                "a process of the audit was killed, perhaps for lack of memory; audit again"
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
