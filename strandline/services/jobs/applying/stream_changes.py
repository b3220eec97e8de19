"""Changes of streams: refusals, and their effect on the jobs that read them."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.core.errors import Conflict, FunctionUnusable, InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.roles import LedgerReader
from strandline.ledger.states import JobRow
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import as_far_as_known, check
from strandline.processing.pipelines.result_streams import emissions_to_streams, present_pipelines, schema_mismatches
from strandline.processing.pipelines.schema_changes import refused_changes
from strandline.processing.pipelines.stored import shapes_of_version, spec_of_version
from strandline.processing.pipelines.upgrade import Effect, changes_between
from strandline.processing.slices.rewind import plan_of_job, rewind_cost
from strandline.services.jobs.applying.registered import find_stream, stream_spec
from strandline.services.jobs.job_status import input_streams


class StreamChanges:
    """Checks changes of streams. Blocking."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger

    def check(self, stream: StreamSpec, pipelines: Sequence[CheckedPipeline]) -> list[str]:
        """Refuse changes that jobs which read the stream, or emit to it, don't support. Return the effect on each reader.

        Raises Conflict.
        Args: pipelines: Pipelines that are applied together with it.
        """
        known = find_stream(self._ledger, stream.stream)
        if known is None or not known.reading_changes(stream):
            return []
        readers = [job for job in self._ledger.jobs() if stream.stream in input_streams(self._ledger, job)]
        if readers:
            documents = self._ledger.stream_documents(stream.stream).values()
            history = [StreamSpec.from_document(one) for one in documents]
            if refused := refused_changes(history, stream):
                names = ", ".join(job.name for job in readers)
                raise Conflict(f"can't change stream {stream.stream}: job {names} reads it, and {'; '.join(refused)}")
        self._refuse_other_results(stream, pipelines)
        return [self._note_of_reader(job, known, stream, pipelines) for job in readers]

    def _note_of_reader(
        self, job: JobRow, known: StreamSpec, stream: StreamSpec, pipelines: Sequence[CheckedPipeline]
    ) -> str:
        spec = spec_of_version(self._ledger, job.name, job.version)
        lookups = shapes_of_version(self._ledger, job.name, job.version, spec)
        others = {name: stream_spec(self._ledger, name) for name in spec.streams if name != stream.stream}
        try:
            before = as_far_as_known(spec, [others.get(name, known) for name in spec.streams], lookups)
            in_batch = next((one for one in pipelines if one.job == job.name), None)
            after = in_batch or check(spec, [others.get(name, stream) for name in spec.streams], lookups=lookups)
        except InvalidDocument as error:
            unfit = "; ".join(
                f"its {problem.path} would have an error: {problem.message}" for problem in error.problems
            )
            raise Conflict(
                f"can't change stream {stream.stream}: job {job.name} reads it, and {unfit}; apply the stream together "
                "with a pipeline that fits"
            ) from error
        except FunctionUnusable as error:
            raise Conflict(
                f"can't change stream {stream.stream}: job {job.name} reads it, and the effect on the job is unknown: {error}; "
                f"or delete the job: strandline job delete {job.name}"
            ) from error
        forbidden = [f"{c.change} ({c.reason})" for c in changes_between(before, after) if c.effect is Effect.FORBIDDEN]
        if forbidden:
            raise Conflict(
                f"can't change stream {stream.stream}: job {job.name} reads it, and this would change "
                f"{'; '.join(forbidden)}; apply the stream together with a pipeline whose results don't change, for example by a "
                "cast"
            )
        if after.identity == before.identity:
            return f"job {job.name} uses this version from its next slice"
        cost = rewind_cost(self._ledger, plan_of_job(self._ledger, after), job.name)
        return (
            f"job {job.name} recomputes its open windows for this version, which reads {cost.records:,} records again"
        )

    def _refuse_other_results(self, stream: StreamSpec, pipelines: Sequence[CheckedPipeline]) -> None:
        """Refuse a stream document that can't contain the results emitted to it."""
        for job, spec in present_pipelines(self._ledger).items():
            of_job = {stage for stage, name in emissions_to_streams(spec) if name == stream.stream}
            if of_job and all(one.job != job for one in pipelines):
                lookups = shapes_of_version(self._ledger, job, self._ledger.job(job).version, spec)
                emitter = as_far_as_known(spec, [stream_spec(self._ledger, name) for name in spec.streams], lookups)
                reasons = [
                    why
                    for stage in emitter.all_stages
                    if stage.name in of_job
                    for why in schema_mismatches(stream, stage)
                ]
                if reasons:
                    raise Conflict(
                        f"can't change stream {stream.stream}: it could not contain the results of job {job}: "
                        f"{'; '.join(reasons)}"
                    )
