"""Reset and deletion of jobs, deletion of streams. See `ledger/lifecycle.py` for incarnations of a job and their separation.

Every method can be killed at any point and called again. In between, the job is stopped in its old incarnation, or the request
is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

import structlog

from strandline.core.errors import Conflict, Fenced, IndexUnavailable, NotFound
from strandline.core.failpoints import failpoint
from strandline.core.record_headers import DEAD_LETTER_PARTITION, dead_letter_topic
from strandline.ledger.lifecycle import Origin
from strandline.ledger.roles import LifecycleLedger
from strandline.ledger.states import JobRow, Offsets, RunRow
from strandline.log.admin import KafkaAdmin
from strandline.processing.emission.fencing import fence_older_runs
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.result_streams import (
    emissions_to_streams,
    emitter_of,
    lagging_readers,
    present_pipelines,
)
from strandline.processing.pipelines.stored import followers_of, spec_of_version
from strandline.results.elasticsearch_client import RequestRefused, delete
from strandline.results.generations import hide_older, newest_generation
from strandline.results.mapping import template_path
from strandline.results.names import dead_letter_index, generation_of
from strandline.results.sinks.registry import sink_of

log = structlog.get_logger()

StartPosition = Literal["start", "earliest", "latest"] | int
"""Position in the log: the start in the job's document, an end of the log, or a log time (ms)."""
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Deleted:
    """Outcome for the output of a deleted job."""

    job: str
    indices: list[str] = field(default_factory=list)
    """Indices of its results, which are kept or deleted as requested."""
    results: Literal["kept", "deleted"] = "kept"
    dead_letters: Literal["kept", "deleted"] = "kept"


class JobLifecycle:
    """Blocking. Safe for several threads and several control services."""

    def __init__(self, ledger: LifecycleLedger, admin: KafkaAdmin, elasticsearch_url: str) -> None:
        """Args: admin: Client that can change topics."""
        self._ledger = ledger
        self._admin = admin
        self._elasticsearch_url = elasticsearch_url

    def reset(self, job: str, to: StartPosition, principal: str | None = None) -> JobRow:
        """Reset a stopped job to a position of its stream, with a new generation of results, for `principal`.

        1. Refuse impossible resets: a running job, a job that emits to streams, a time in a stream of results.
        2. Fence its runs, in the ledger and in Kafka.
        3. Begin the new incarnation in the ledger, in one transaction.
        4. Remove the results of earlier incarnations from its aliases. If the index doesn't respond, the next run
           removes them before it writes.

        Raises Conflict for an impossible reset; NotFound, LogUnavailable, LedgerUnavailable.
        """
        row = self._ledger.job(job)
        spec = spec_of_version(self._ledger, job, row.version)
        if streams := sorted({stream for _, stream in emissions_to_streams(spec)}):
            raise Conflict(
                f"job {job} emits to stream {', '.join(streams)}, so a reset would emit the same results again, and readers "
                "would count them twice. Apply the pipeline under another name, with other streams. Or first remove the stream "
                "from the pipeline permanently: after the reset, the job can't emit to it again"
            )
        if sinks := sorted({f"{emit.kind} {emit.name}" for _, emit in spec.emissions() if sink_of(emit).is_elsewhere}):
            raise Conflict(
                f"job {job} emits to {', '.join(sinks)}, which has no generations, so a reset would conflict with the existing "
                "results. Apply the pipeline under another name, with other sinks. Or first remove the sink from the pipeline "
                "permanently: after the reset, the job can't emit to it again"
            )
        self._refuse_lagging(job, "reset")
        origin = self.origin(spec, to)
        fence = self._end_runs(job, "reset")
        try:
            row = self._ledger.reset_job(fence, Origin(origin, self._letters_end(job)), self._generation_taken(spec))
        except Fenced as error:
            raise _started(job, "reset") from error
        failpoint("reset.begun")
        message = f"job {job} was reset to {to if isinstance(to, str) else f'log time {to} ms'}"
        facts = {"generation": row.generation, "epoch": row.epoch, "offsets": origin}
        self._ledger.record_event("job_reset", message, job, row.epoch, facts, principal)
        self._hide(spec, row)
        return row

    def delete(self, job: str, *, results: bool, dead_letters: bool, principal: str | None = None) -> Deleted:
        """Delete a job that doesn't run, for `principal`; its results and dead letters only on request. For a job that was
        deleted before, delete these now. Dead letters stay if the name was used again in the meantime. Raises Conflict, with
        the dependent objects; NotFound, LogUnavailable, IndexUnavailable, LedgerUnavailable."""
        if not self._ledger.deleted_job(job):
            spec = spec_of_version(self._ledger, job, self._ledger.job(job).version)
            self._refuse_readers(job, spec)
            self._refuse_lagging(job, "deleted")
            fence = self._end_runs(job, "deleted")
            try:
                self._ledger.delete_job(fence, self._letters_end(job))
            except Fenced as error:
                raise _started(job, "delete") from error
            failpoint("delete.recorded")
            self._ledger.record_event("job_deleted", f"job {job} was deleted", job, fence.epoch, principal=principal)
        if principal is not None and (results or dead_letters):
            what = " and ".join(
                name for name, is_asked in (("results", results), ("dead letters", dead_letters)) if is_asked
            )
            message = f"{principal} ordered: delete the {what} of job {job}"
            self._ledger.record_event("delete_ordered", message, job, principal=principal)
        made = self._ledger.result_indices(job)
        indices = self._ledger.indices_left(job)
        if results:
            self._delete_indices(indices)
            # Also the indices of other jobs' results, which the job has written to.
            self._ledger.forget_indices(job, made)
        if dead_letters:
            self._delete_letters(job)
        return Deleted(job, indices, "deleted" if results else "kept", "deleted" if dead_letters else "kept")

    def delete_stream(self, name: str, *, keep_topic: bool, principal: str | None = None) -> None:
        """Delete a stream that no job reads or emits to, for `principal`. Gateways refuse its records after their next read of
        the streams. For a stream that was deleted before, delete its topic if it still exists, or keep it with `keep_topic`.
        Raises Conflict, with the jobs; NotFound, LogUnavailable, LedgerUnavailable."""
        if self._is_left(name):
            if keep_topic:
                self._ledger.keep_topic_of_deleted_stream(name, principal)
            else:
                self._admin.delete(name)
            return
        jobs = self._ledger.jobs()
        pipelines = present_pipelines(self._ledger)
        readers = sorted(job for job, spec in pipelines.items() if name in spec.streams)
        emitters = sorted(
            job for job, spec in pipelines.items() if any(stream == name for _, stream in emissions_to_streams(spec))
        )
        followers = [spec.lookup for spec in followers_of(self._ledger, name)]
        needs = [f"job {job} reads it" for job in readers] + [f"job {job} emits to it" for job in emitters]
        needs += [f"lookup {lookup} follows it" for lookup in followers]
        if needs:
            first = f"job delete {[*readers, *emitters][0]}" if readers or emitters else f"lookup delete {followers[0]}"
            what = "the jobs" if readers or emitters else "the lookups"
            raise Conflict(
                f"stream {name} can't be deleted, because {', '.join(needs)}; first run strandline {first} to delete {what}"
            )
        checked = {job.name: job.version for job in jobs}
        self._ledger.delete_stream(name, checked, keeps_topic=keep_topic, principal=principal)
        if not keep_topic:
            with suppress(NotFound):  # deleted by another program
                self._admin.delete(name)

    def _is_left(self, stream: str) -> bool:
        """Return True if the stream was deleted, but its topic, which had to be deleted too, still exists."""
        topic_id = self._ledger.topic_of_deleted_stream(stream)
        if topic_id is None:
            return False
        try:
            return self._admin.describe(stream).topic_id == topic_id
        except NotFound:
            return False

    def origin(self, spec: PipelineSpec, to: StartPosition = "start") -> Offsets:
        """Return the offsets of a position in each stream that the pipeline reads.

        Raises Conflict for a time in a stream of results, which is read by whole emissions; NotFound, LogUnavailable.
        """
        return {read.stream: self._origin(read.stream, read.start if to == "start" else to) for read in spec.reads}

    def _origin(self, stream: str, to: StartPosition) -> dict[int, int]:
        partitions = range(self._admin.describe(stream).partitions)
        starts = self._admin.starts(stream, partitions)
        if to == "earliest":
            return starts
        emitter = emitter_of(self._ledger, stream)
        if isinstance(to, int):
            if emitter is not None:
                raise Conflict(
                    f"stream {stream} contains the results of job {emitter}, which are read by whole emissions; start at "
                    "earliest or latest"
                )
            ends, found = self._admin.ends(stream, partitions), self._admin.offsets_at(stream, partitions, to)
            return {p: min(found[p], ends[p]) if found[p] >= 0 else ends[p] for p in partitions}
        ends = self._admin.ends(stream, partitions)
        if emitter is not None:
            last = self._ledger.last_checkpoint(emitter)
            emitted: Mapping[int, int] = last.result_offsets.get(stream, {}) if last else {}
            ends = {p: max(starts[p], min(end, emitted.get(p, 0))) for p, end in ends.items()}
        return ends

    def _end_runs(self, job: str, verb: str) -> RunRow:
        """Fence all runs of the job, in the ledger and in Kafka, so that they write nothing afterwards."""
        fence = self._ledger.end_runs(job, verb)
        failpoint("life.runs_ended")
        fence_older_runs(self._ledger, self._admin.bootstrap, fence)
        failpoint("life.fenced")
        return fence

    def _letters_end(self, job: str) -> dict[int, int]:
        """Return the end of the dead letters. No run of the job can write another one."""
        try:
            return self._admin.ends_with_open(dead_letter_topic(job), [DEAD_LETTER_PARTITION])
        except NotFound:
            return {}

    def _refuse_readers(self, job: str, spec: PipelineSpec) -> None:
        """Refuse the deletion of a job whose results another job reads: the reader's slices end at this job's checkpoints."""
        emitted = {stream for _, stream in emissions_to_streams(spec)}
        for other, reading in present_pipelines(self._ledger).items():
            if read := emitted.intersection(reading.streams):
                raise Conflict(
                    f"can't delete job {job}: job {other} reads its results from stream {min(read)}; first run "
                    f"strandline job delete {other}"
                )

    def _refuse_lagging(self, job: str, done: str) -> None:
        """Refuse to delete the checkpoints of a job while a reader of its former stream still needs them. Raises Conflict."""
        for stream, readers in sorted(lagging_readers(self._ledger, job).items()):
            raise Conflict(
                f"job {job} can't be {done}: job {', '.join(readers)} hasn't read all results that {job} emitted to stream "
                f"{stream}, and its slices end at these emissions. Start job {readers[0]} and wait until it has read them "
                f"(strandline job status {readers[0]}), or delete it: strandline job delete {readers[0]}"
            )

    def _generation_taken(self, spec: PipelineSpec) -> int:
        """Return the highest generation in the index; 0 if the index doesn't respond. Then the next run refuses unknown
        results."""
        try:
            return newest_generation(self._elasticsearch_url, _aliases(spec))
        except (IndexUnavailable, RequestRefused) as error:
            log.warning("can't read the generations in the index", job=spec.pipeline, why=str(error))
            return 0

    def _hide(self, spec: PipelineSpec, row: JobRow) -> None:
        try:
            for alias in _aliases(spec):
                hide_older(self._elasticsearch_url, alias, row.generation)
        except (IndexUnavailable, RequestRefused) as error:
            log.warning("the next run hides the results of earlier incarnations", job=row.name, why=str(error))

    def _delete_indices(self, indices: list[str]) -> None:
        for index in indices:
            stem = index.rpartition("-")[0]
            # An index of open windows has no month in its name, and its own template.
            template = template_path(index if generation_of(stem, index) is None else stem)
            for path in (f"/{index}", template):
                delete(self._elasticsearch_url, path, timeout_s=_TIMEOUT_S)

    def _delete_letters(self, job: str) -> None:
        """Delete the dead letters. While this runs, the name can't be used again. They stay if it was used again, or if Kafka
        refuses. If two deletions run, the older one stops when it detects the newer one."""
        try:
            deletion = self._ledger.begin_deletion_of_letters(job)
        except NotFound as error:
            raise Conflict(
                f"the name of job {job} was used again after the deletion, and the new job writes to the same "
                "stream of dead letters, so they are kept"
            ) from error
        try:
            delete(self._elasticsearch_url, f"/{dead_letter_index(job)}", timeout_s=_TIMEOUT_S)
        finally:
            # Whether Elasticsearch responds or not: the name must not be blocked by it.
            self._delete_letter_topic(job, deletion)

    def _delete_letter_topic(self, job: str, deletion: int) -> None:
        # After the end of a newer deletion, the topic can belong to the next job.
        self._ledger.require_deletion_of_letters(job, deletion)
        try:
            self._admin.delete(dead_letter_topic(job))
        except NotFound:
            log.info("there are no dead letters to delete", job=job)
        except Conflict:
            self._ledger.keep_letters(
                job, deletion
            )  # Kafka refuses to delete them, and the name must not be blocked by it
            raise
        self._ledger.forget_letters(job, deletion)


def _started(job: str, verb: str) -> Conflict:
    return Conflict(f"job {job} was started in the meantime; stop it, then run strandline job {verb} {job} again")


def _aliases(spec: PipelineSpec) -> list[str]:
    return sorted({emit.name for step in spec.steps for emit in step.emit or [] if sink_of(emit).has_generations})
