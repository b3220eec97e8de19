"""The task of a pool: it reads, computes, and emits the whole slice of each member, one member after the other. A *member* is a
job that runs in the pool.

There is one bucket for each member, so no record crosses an exchange. The functions are those of the source task and of the
keyed task. The failure of a member is its outcome, and has no effect on other members.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from strandline.processing.emission.keyed_task import BegunBucket
from strandline.processing.emission.member_configs import CompiledMember, MemberConfigs
from strandline.processing.emission.member_outcomes import Failure, MemberOutcome
from strandline.processing.emission.stage_emission import reach_write
from strandline.processing.emission.state_files import HeldState
from strandline.processing.emission.work_marks import WorkMark, mark_of_process
from strandline.processing.source.decoding import RecordReader, reader_of_process
from strandline.processing.source.member_slices import MemberSlice
from strandline.processing.source.shared_records import SharedRecords
from strandline.results.shared_bulk import PreparedWrite, check_together, send_together

_BUCKET = 0
"""Number of the only bucket of a member."""
_DOCUMENTS_MAX, _BYTES_MAX = 2_000, 5_000_000
"""Maximum number of documents and bytes in one request, unless a member has more."""
_INDEX_CHECK_S = 0.5
"""Maximum time in seconds for which a batch waits until missing indices are created."""
_CONFIGS, _MEMBERS, _MARKS = "configs", "members", "marks"


@dataclass(frozen=True)
class PoolDirectory:
    """The directory of one pool. All executors see it. It is deleted when the pool ends."""

    path: Path

    @property
    def configs(self) -> MemberConfigs:
        """The configs of all members."""
        return MemberConfigs(self.path / _CONFIGS)

    @property
    def marks(self) -> Path:
        """The marks of the workers."""
        return self.path / _MARKS

    def of_member(self, job: str, epoch: int) -> Path:
        """Return the directory for the state of one run of a member."""
        return self.path / _MEMBERS / job / str(epoch)


@dataclass(frozen=True)
class _Begun:
    """A member's slice that is computed, and not emitted yet."""

    slice: MemberSlice
    compiled: CompiledMember
    before: HeldState | None
    bucket: BegunBucket
    cpu_us: int


@dataclass(frozen=True)
class PoolTask:
    """Processes the members of one task. Travels pickled to the executors."""

    directory: PoolDirectory
    kafka_bootstrap: str
    fetch_timeout_s: float = 30.0
    """Maximum time in seconds without a record of a range. After it, the member fails with LogUnavailable."""
    store_timeout_s: float = 30.0
    """Maximum time in seconds of the request with the documents of all members."""
    is_tried_once: bool = False
    """True if a member fails when Elasticsearch doesn't accept its documents now, so that others don't wait for it. False if they
    are sent again until the deadline of the writer."""

    def outcomes(self, members: Sequence[MemberSlice]) -> list[MemberOutcome]:
        """Process the slices of these members, and return one outcome for each.

        1. For each member: read its records and compute its slice. Write dead letters of rejected records.
        2. Send the documents of all members to Elasticsearch in one request.
        3. For each member: emit the other results, then write its state.

        Replays come first, because they read the log alone. The records of all new slices are fetched in one go.
        """
        ordered, mark = sorted(members, key=lambda one: one.is_new), mark_of_process(self.directory.marks)
        shared = SharedRecords(
            reader_of_process(self.kafka_bootstrap, self.fetch_timeout_s),
            [found for one in ordered for found in one.ranges],
        )
        with closing(shared):
            configs = self.directory.configs
            begun = [self._begin(one, configs, shared, mark) for one in ordered]
        begun = self._documents_sent(begun, mark)
        outcomes = [one if isinstance(one, MemberOutcome) else self._finish(one, mark) for one in begun]
        mark.works_on("")
        return outcomes

    def _begin(
        self, one: MemberSlice, configs: MemberConfigs, reader: RecordReader, mark: WorkMark
    ) -> _Begun | MemberOutcome:
        at_ns = time.thread_time_ns()
        mark.works_on(one.job)
        try:
            compiled = configs.compiled(one.config)
            before = None if one.state_before is None else compiled.states.read(one.state_before)
            rows = compiled.source.blobs(
                one.pieces, is_new=one.is_new, work=one.work, restores=one.restores, reader=reader
            )
            if compiled.config.source.crashes:
                rows = iter(list(rows))  # a bad record ends the run before the slice has any effect
            state = None if before is None else before.state
            bucket = compiled.keyed.begin(_BUCKET, (row[1:] for row in rows), state)
            return _Begun(one, compiled, before, bucket, _cpu_us_since(at_ns))
        except Exception as error:  # noqa: BLE001 - the outcome of this member, and of no other one
            return _failed(one, error, _cpu_us_since(at_ns))

    def _documents_sent(self, begun: Sequence[_Begun | MemberOutcome], mark: WorkMark) -> list[_Begun | MemberOutcome]:
        """Make the documents of all members, and send them in shared requests. Return `begun`: if the documents of a member can't
        be made, its failed outcome replaces it."""
        found: list[_Begun | MemberOutcome] = []
        writes: list[PreparedWrite] = []
        for one in begun:
            if isinstance(one, MemberOutcome):
                found.append(one)
                continue
            at_ns = time.thread_time_ns()
            mark.works_on(one.slice.job)
            try:
                writes += one.compiled.keyed.make_documents(one.bucket)
                found.append(replace(one, cpu_us=one.cpu_us + _cpu_us_since(at_ns)))
            except Exception as error:  # noqa: BLE001 - the outcome of this member, and of no other one
                found.append(_failed(one.slice, error, one.cpu_us + _cpu_us_since(at_ns)))
        mark.works_on("")
        if writes:
            reach_write()
        if self.is_tried_once:
            check_together(writes, _INDEX_CHECK_S)
        send_together(
            writes,
            documents_max=_DOCUMENTS_MAX,
            bytes_max=_BYTES_MAX,
            timeout_s=self.store_timeout_s,
            is_tried_once=self.is_tried_once,
        )
        return found

    def _finish(self, begun: _Begun, mark: WorkMark) -> MemberOutcome:
        at_ns, one = time.thread_time_ns(), begun.slice
        mark.works_on(one.job)
        try:
            done = begun.compiled.keyed.finish(begun.bucket)
            begun.compiled.states.write(one.number, done.state, begun.before)
            cpu_us = begun.cpu_us + _cpu_us_since(at_ns)
            return MemberOutcome(one.job, one.number, done.outcome, cpu_us=cpu_us, state_bytes=len(done.state))
        except Exception as error:  # noqa: BLE001 - the outcome of this member, and of no other one
            return _failed(one, error, begun.cpu_us + _cpu_us_since(at_ns))


def _failed(one: MemberSlice, error: Exception, cpu_us: int) -> MemberOutcome:
    return MemberOutcome(one.job, one.number, failure=Failure.of(error), cpu_us=cpu_us)


def _cpu_us_since(thread_time_ns: int) -> int:
    return (time.thread_time_ns() - thread_time_ns) // 1_000


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[MemberOutcome])


def encode_outcomes(outcomes: Sequence[MemberOutcome]) -> bytes:
    """Return the outcomes of a task as bytes."""
    return _ENCODER.encode(outcomes)


def decode_outcomes(blobs: Iterable[bytes]) -> Iterator[MemberOutcome]:
    """Yield the outcomes of all tasks."""
    for blob in blobs:
        yield from _DECODER.decode(blob)
