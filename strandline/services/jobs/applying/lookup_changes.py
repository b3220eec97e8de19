"""Changes of lookups: refusals, their effect on the jobs that use them, and their application."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from strandline.core.errors import Conflict, InvalidDocument, InvalidSettings, NotFound
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.lookups.packed_rows import pack_rows
from strandline.core.lookups.source import HOLD_MS
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.lookups.sources import SourceBegin
from strandline.ledger.roles import ApplyLedger
from strandline.ledger.states import LookupRow
from strandline.processing.formats.lookups.documents import ReadLookup
from strandline.processing.formats.lookups.rows import digest_of
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.lookups.followed_streams import problems_of_source
from strandline.processing.pipelines.lookups.lookup_shapes import refused_changes, shape_of
from strandline.processing.pipelines.result_streams import present_pipelines
from strandline.processing.pipelines.stored import followers_of, shapes_of_version
from strandline.services.jobs.applying.applied import Applied

_READER = "an apply"
"""Reader of a source for a changed document, as the ledger records it."""


@dataclass(frozen=True)
class LookupChange:
    """A checked change. It is valid only while the lookup has the state of the check."""

    base: int
    """Version against which it was checked; 0 if there was none."""
    floor: int | None = None
    """Oldest version that a job needed."""
    notes: list[str] = field(default_factory=list)


class Sources(Protocol):
    """Reader of the sources of lookups, as `SourceReader`."""

    def read_all(self, spec: LookupSpec) -> tuple[bytes, int, SourceBegin]: ...


class LookupChanges:
    """Checks and makes changes of lookups. Blocking."""

    def __init__(self, ledger: ApplyLedger, sources: Sources | None = None) -> None:
        """Args: sources: None if no lookup can be followed."""
        self._ledger = ledger
        self._sources = sources

    def check(self, lookup: ReadLookup, pipelines: Sequence[CheckedPipeline]) -> LookupChange:
        """Refuse changes that a replay, or a job that uses the lookup, doesn't support. Raises Conflict.

        Args: pipelines: Pipelines that are applied together with it. They were checked against it before.
        """
        name = lookup.spec.lookup
        try:
            known = self._ledger.lookup(name)
        except NotFound:
            return LookupChange(0)
        floor = self._ledger.lookup_floor(name)
        if self._is_known(lookup, known) or floor is None:
            return LookupChange(known.version, floor)
        needed = self._ledger.lookup_documents(name, floor)
        if refused := refused_changes([LookupSpec.described(document) for document in needed], lookup.spec):
            jobs = ", ".join(self._ledger.jobs_with_lookup(name))
            raise Conflict(f"can't change lookup {name}: job {jobs} needs it, and {'; '.join(refused)}")
        together = {one.job for one in pipelines}
        using = {job: spec for job, spec in present_pipelines(self._ledger).items() if name in spec.lookups()}
        for job, spec in using.items():
            if job not in together:
                shapes = shapes_of_version(self._ledger, job, self._ledger.job(job).version, spec)
                documents = [self._ledger.stream(one).document for one in spec.streams]
                streams = [StreamSpec.from_document(one) for one in documents]
                try:
                    check(spec, streams, lookups={**shapes, name: shape_of(lookup.spec)})
                except InvalidDocument as error:
                    raise Conflict(
                        f"can't change lookup {name}: job {job} uses it, and "
                        f"{'; '.join(f'its {one.path} {one.message}' for one in error.problems)}; apply the lookup together "
                        "with a pipeline that fits"
                    ) from error
        return LookupChange(
            known.version, floor, [f"job {job} uses this version from its next slice" for job in sorted(using)]
        )

    def refuse_unfit(self, stream: StreamSpec, lookups: Sequence[ReadLookup]) -> None:
        """Refuse a stream document that a lookup can't follow any more. Raises Conflict.

        Args: lookups: Lookups that are applied together with it. They were checked against it before.
        """
        for spec in followers_of(self._ledger, stream.stream):
            if all(one.spec.lookup != spec.lookup for one in lookups):
                refused = [message for _, message in problems_of_source(spec, stream)]
                if refused:
                    raise Conflict(
                        f"can't change stream {stream.stream}: lookup {spec.lookup} follows it, and "
                        f"{'; '.join(refused)}"
                    )

    def apply(self, lookup: ReadLookup, change: LookupChange, principal: str | None) -> Applied:
        """Make a change, for `principal`. If the lookup is followed and its document differs, first read the rows of its
        source.

        Raises Conflict if the lookup, or a job that needs it, has changed since the check; errors of the source.
        """
        spec = lookup.spec
        if spec.source is None:
            row = self._put(spec, change, lookup.text, lookup.rows.num_rows)
        elif (known := self._followed(spec)) is not None:
            return Applied(kind="lookup", name=known.name, outcome="unchanged", version=known.version, notes=[])
        else:
            row = self._read(spec, change)
        outcome = outcome_of(change.base or None, row.version)
        if outcome == "changed" or (principal is not None and outcome != "unchanged"):
            message = f"lookup {row.name} {outcome}: version {row.version}, {row.rows:,} rows"
            facts = {"lookup": row.name, "version": row.version, "rows": row.rows}
            self._ledger.record_event(f"lookup_{outcome}", message, facts=facts, principal=principal)
        return Applied(kind="lookup", name=row.name, outcome=outcome, version=row.version, notes=change.notes)

    def _read(self, spec: LookupSpec, change: LookupChange) -> LookupRow:
        """Read the rows of the lookup's source, and register them with the document as a version. The lookup is claimed
        first, so that no follower records newer rows before.
        """
        if self._sources is None:
            raise InvalidSettings("this service can't follow sources; put the rows into the document, or into a file")
        claimed = self._ledger.claim_lookup(spec.lookup, _READER, HOLD_MS, at_once=True)
        if claimed is None:
            return self._put(spec, change, *self._sources.read_all(spec))
        try:
            return self._put(spec, change, *self._sources.read_all(spec), claimed.claim)
        except BaseException:
            self._ledger.release_claim(spec.lookup, claimed.claim)
            raise

    def _put(
        self,
        spec: LookupSpec,
        change: LookupChange,
        text: bytes,
        rows: int,
        source: SourceBegin | None = None,
        claim: int | None = None,
    ) -> LookupRow:
        digest, packed = digest_of(spec, text), pack_rows(text)
        return self._ledger.put_lookup(
            spec.lookup, spec.without_rows(), digest, packed, rows, change.base, change.floor, source, claim
        )

    def _is_known(self, lookup: ReadLookup, known: LookupRow) -> bool:
        """Return True if the document changes no types, no key, and no source, and also no rows if it isn't followed."""
        if lookup.spec.source is not None:
            return known.document == lookup.spec.without_rows()
        return known.digest == lookup.digest

    def _followed(self, spec: LookupSpec) -> LookupRow | None:
        """Return the lookup if it is already followed with this document. None otherwise."""
        state = self._ledger.lookup_sources().get(spec.lookup)
        if state is None or (spec.source is not None and spec.source.stream is not None and state.position is None):
            return None
        known = self._ledger.lookup(spec.lookup)
        return known if known.document == spec.without_rows() else None


def outcome_of(before: int | None, now: int) -> Literal["created", "changed", "unchanged"]:
    """Return the outcome for a document. `before`: version before; None if there was none."""
    if before is None:
        return "created"
    return "unchanged" if before == now else "changed"
