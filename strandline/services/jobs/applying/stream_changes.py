"""Changes of streams: which are refused, and what they mean for the jobs that read them."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.core.errors import Conflict, InvalidDocument
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
    """Checks them. Blocking."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger

    def check(self, stream: StreamSpec, pipelines: Sequence[CheckedPipeline]) -> list[str]:
        """Refuse what the jobs that read the stream, or emit to it, can't take; return what the change means for each reader.
        `pipelines`: those that are applied together with it. Raises Conflict."""
        known = find_stream(self._ledger, stream.stream)
        if known is None or not known.reading_changes(stream):
            return []
        readers = [job for job in self._ledger.jobs() if stream.stream in input_streams(self._ledger, job)]
        if readers:
            documents = self._ledger.stream_documents(stream.stream).values()
            history = [StreamSpec.from_document(one) for one in documents]
            if refused := refused_changes(history, stream):
                names = ", ".join(job.name for job in readers)
                raise Conflict(
                    f"stream {stream.stream} can't change so while job {names} reads it: {'; '.join(refused)}"
                )
        self._refuse_other_results(stream, pipelines)
        return [self._note_of_reader(job, known, stream, pipelines) for job in readers]

    def _note_of_reader(
        self, job: JobRow, known: StreamSpec, stream: StreamSpec, pipelines: Sequence[CheckedPipeline]
    ) -> str:
        spec = spec_of_version(self._ledger, job.name, job.version)
        lookups = shapes_of_version(self._ledger, job.name, job.version, spec)
        others = {name: stream_spec(self._ledger, name) for name in spec.streams if name != stream.stream}
        before = as_far_as_known(spec, [others.get(name, known) for name in spec.streams], lookups)
        try:
            in_batch = next((one for one in pipelines if one.job == job.name), None)
            after = in_batch or check(spec, [others.get(name, stream) for name in spec.streams], lookups=lookups)
        except InvalidDocument as error:
            raise Conflict(
                f"stream {stream.stream} can't change so while job {job.name} reads it: "
                f"{'; '.join(f'its {problem.path} {problem.message}' for problem in error.problems)}. Apply a pipeline that fits "
                "the stream together with it"
            ) from error
        forbidden = [f"{c.what} ({c.reason})" for c in changes_between(before, after) if c.effect is Effect.FORBIDDEN]
        if forbidden:
            raise Conflict(
                f"stream {stream.stream} can't change so while job {job.name} reads it, because that changes "
                f"{'; '.join(forbidden)}. Apply it together with a pipeline whose results stay as they are, for example by a cast"
            )
        if after.identity == before.identity:
            return f"job {job.name} goes by it from its next slice on"
        cost = rewind_cost(self._ledger, plan_of_job(self._ledger, after), job.name)
        return f"job {job.name} computes its open windows anew for it, which reads {cost.records:,} records again"

    def _refuse_other_results(self, stream: StreamSpec, pipelines: Sequence[CheckedPipeline]) -> None:
        """A stream of results must still hold what is emitted to it."""
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
                        f"stream {stream.stream} can't hold the results of job {job} then: {'; '.join(reasons)}"
                    )
