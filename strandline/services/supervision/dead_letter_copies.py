"""Copies the dead letters of jobs with `dead_letters: {index: true}` into their index, in parallel with the jobs.

A job never waits for the copies, and never fails because of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from strandline.ledger.roles import LedgerReader
from strandline.log.kafka_status import KafkaStatus
from strandline.processing.pipelines.model.pipeline import DeadLettersSpec
from strandline.processing.pipelines.stored import spec_of_row
from strandline.results.dead_letters.documents import dead_letter_document
from strandline.results.dead_letters.index import DeadLetterIndex
from strandline.services.supervision.job_sweep import PeriodicJobTask

POLL_INTERVAL_S = 5.0
LETTERS_AT_ONCE = 2_000
"""Maximum number of dead letters that are read before the progress is recorded."""
PAUSE_S = 0.05
"""Pause between two parts, so that other work can run in between."""


class DeadLetterCopies:
    """Runs in its own thread between `start` and `close`, for the jobs that this control service leads. Two can copy the same
    job without harm."""

    def __init__(
        self,
        ledger: LedgerReader,
        leads: Callable[[str], bool],
        log: KafkaStatus,
        elasticsearch_url: str,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Args: leads: Returns True if this control service leads the job now. now_ms: Determines only how long dead letters
        stay in the index."""
        self._ledger = ledger
        self._leads = leads
        self._log = log
        self._elasticsearch_url = elasticsearch_url
        self._now_ms = now_ms
        self._sweep = PeriodicJobTask(
            ledger, self._copy_job, action="copy dead letters", every_s=POLL_INTERVAL_S, jobs=self._jobs
        )
        self.start, self.close = self._sweep.start, self._sweep.close
        self.copy = self._sweep.look
        """Process all jobs once, and return the number of copied dead letters."""

    def _jobs(self) -> list[str]:
        """Return the jobs whose current versions have an index of dead letters, with one query."""
        versions = self._ledger.current_versions_of_jobs()
        return [job for job, row in versions.items() if spec_of_row(row).dead_letters.index]

    def _copy_job(self, job: str) -> int:
        spec = spec_of_row(self._ledger.job_version(job)).dead_letters
        copied, is_done = 0, not spec.index
        while not is_done and self._leads(job):
            created, is_done = self._copy_some(job, spec)
            copied += created
            if self._sweep.is_closing(0 if is_done else PAUSE_S):
                break
        return copied

    def _copy_some(self, job: str, spec: DeadLettersSpec) -> tuple[int, bool]:
        """Copy one part. Return the number of new documents in the index, and True if all dead letters are copied.

        1. Begin at the position that the index records, but skip dead letters that it would not keep.
        2. Create the documents of the part. After a kill, the next call creates them again, which adds nothing.
        3. Record the new position in the index.
        4. Delete some of the documents that are too old or too many.
        """
        oldest_ms = self._now_ms() - spec.retention
        held = self._log.dead_letter_range(job, oldest_ms)
        if held is None:
            return 0, True
        index = DeadLetterIndex(self._elasticsearch_url, job)
        before, number_kept = index.copied().get(held.topic_id, 0), held.offset_next - spec.max_documents
        number = min(max(before, held.offset_first, number_kept), held.offset_next)
        number_next = min(number + LETTERS_AT_ONCE, held.offset_next)
        created = 0
        for letters in self._log.read_dead_letters(job, number, number_next):
            created += index.create(
                [
                    dead_letter_document(index.name, held.topic_id, one.offset, one.log_time_ms, one.headers, one.value)
                    for one in letters
                ]
            )
        if number_next > before:
            index.remember(held.topic_id, number_next)
        index.forget(oldest_ms, held.topic_id, number_kept)
        return created, number_next == held.offset_next
