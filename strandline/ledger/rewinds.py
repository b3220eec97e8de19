"""Reads for the costs of rewinds of many jobs: one query for all jobs instead of several for each."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from strandline.ledger.models import checkpoints, slices
from strandline.ledger.part import Part
from strandline.ledger.states import Offsets


class ReplayStart(NamedTuple):
    """Slice with which a replay begins."""

    offsets_first: Offsets | None
    """Offsets at which the slice begins. None if the ledger doesn't contain the slice."""
    log_ms_before: int | None
    """Latest log time before the slice. None if no earlier slice is committed, or if the time isn't known."""


class RewindReader(Part):
    """Reads the facts from which the cost of a rewind is computed, for many jobs at once."""

    def floors(self, names: Collection[str]) -> dict[str, int]:
        """Return job -> number of its last slice that can't be replayed any more. 0 if all can be."""
        oldest = sa.select(slices.c.job, sa.func.min(slices.c.number)).where(slices.c.job.in_(names))
        with self._database.reading(f"find the oldest slices of {len(names)} jobs") as connection:
            found = {job: int(number) for job, number in connection.execute(oldest.group_by(slices.c.job))}
        return {name: found[name] if found.get(name, 0) > 1 else 0 for name in names}

    def first_slices_reaching(self, event_ms: Mapping[str, int]) -> dict[str, int]:
        """Return job -> its lowest committed slice after which the latest event time was `event_ms[job]` or later.

        A job without such a slice is left out.
        """
        if not event_ms:
            return {}
        wanted = _table("reached", event_ms)
        # The latest event time never falls, so the first in the index's order is also the lowest slice.
        first = (
            sa.select(checkpoints.c.slice)
            .where(checkpoints.c.job == wanted.c.job, checkpoints.c.latest_event_ms >= wanted.c.number)
            .order_by(checkpoints.c.latest_event_ms, checkpoints.c.slice)
            .limit(1)
            .correlate(wanted)
            .scalar_subquery()
        )
        with self._database.reading(f"find where {len(event_ms)} jobs reached event times") as connection:
            rows = connection.execute(sa.select(wanted.c.job, first))
            return {job: int(number) for job, number in rows if number is not None}

    def replay_starts(self, slice_first: Mapping[str, int]) -> dict[str, ReplayStart]:
        """Return the slice with which the replay of each job begins. `slice_first`: job -> number of that slice."""
        if not slice_first:
            return {}
        wanted = _table("starts", slice_first)
        before = (
            sa.select(checkpoints.c.latest_log_ms)
            .where(checkpoints.c.job == wanted.c.job, checkpoints.c.slice < wanted.c.number)
            .order_by(checkpoints.c.slice.desc())
            .limit(1)
            .correlate(wanted)
            .scalar_subquery()
        )
        is_first = (slices.c.job == wanted.c.job) & (slices.c.number == wanted.c.number)
        starts = sa.select(wanted.c.job, slices.c.offsets_first, before)
        with self._database.reading(f"read where the replays of {len(slice_first)} jobs begin") as connection:
            rows = connection.execute(starts.select_from(wanted.outerjoin(slices, is_first)))
            return {job: ReplayStart(offsets_first, log_ms) for job, offsets_first, log_ms in rows}

    def highest_rates(self, slice_last: Mapping[str, int], count: int) -> dict[str, float]:
        """Return job -> the highest rate in records per second of its last `count` slices up to `slice_last[job]`, from
        plan to commit. Only committed slices that the ledger still contains are compared; a job without one is left out.
        """
        if not slice_last:
            return {}
        wanted = _table("lasts", slice_last)
        took_ms = checkpoints.c.committed_ms - slices.c.planned_ms
        rate = 1_000.0 * checkpoints.c.records / sa.case((took_ms < 1, 1), else_=took_ms)
        is_late = (
            (checkpoints.c.job == wanted.c.job)
            & (checkpoints.c.slice > wanted.c.number - count)
            & (checkpoints.c.slice <= wanted.c.number)
        )
        is_slice = (slices.c.job == checkpoints.c.job) & (slices.c.number == checkpoints.c.slice)
        rates = sa.select(wanted.c.job, sa.func.max(rate)).group_by(wanted.c.job)
        with self._database.reading(f"read the rates of {len(slice_last)} jobs") as connection:
            rows = connection.execute(rates.select_from(wanted.join(checkpoints, is_late).join(slices, is_slice)))
            return {job: float(highest) for job, highest in rows}


class _JsonMembers(FunctionElement[Any]):
    """Rows (member, value) of an object in JSON. Its text is one parameter, so SQLAlchemy compiles a statement once for all
    objects. With a row of parameters for each job, it would compile the statement again at each call."""

    name = "json_members"
    inherit_cache = True


@compiles(_JsonMembers, "sqlite")
def _in_sqlite(element: _JsonMembers, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_each({compiler.process(element.clauses, **options)})"


@compiles(_JsonMembers, "postgresql")
def _in_postgresql(element: _JsonMembers, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_each_text(CAST({compiler.process(element.clauses, **options)} AS json))"


def _table(name: str, numbers: Mapping[str, int]) -> sa.CTE:
    """Return a table with the columns `job` and `number`."""
    text = sa.literal(json.dumps(numbers), sa.Text)
    members = _JsonMembers(text).table_valued(sa.column("key", sa.Text), sa.column("value", sa.Text), name=f"of_{name}")
    job, number = members.c.key.label("job"), sa.cast(members.c.value, sa.BigInteger).label("number")
    return sa.select(job, number).cte(name)
