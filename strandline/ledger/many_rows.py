"""Writes for many jobs in one transaction: a job that is refused doesn't affect the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from strandline.core.errors import Conflict, Fenced, LedgerBehind, NotFound, StrandlineError

Refusals = dict[str, StrandlineError]
"""Jobs whose row was not written -> the error."""
_Request = TypeVar("_Request", bound="_OfJob")


class _OfJob(Protocol):
    """A row, or a request, of a job."""

    @property
    def job(self) -> str: ...


def different_jobs(rows: Iterable[_OfJob]) -> list[str]:
    """Return the job of each row. Raises ValueError if a job has several rows."""
    names = [row.job for row in rows]
    if len(set(names)) != len(names):
        raise ValueError(f"several rows of one job: {', '.join(names)}; write each row of a job in its own call")
    return names


def action_of(what: str, names: Sequence[str]) -> str:
    """Return the description of a write, for its errors."""
    return f"{what} of job {names[0]}" if len(names) == 1 else f"{what} of {len(names)} jobs"


def refusals_of_each(rows: Iterable[_Request], do: Callable[[_Request], None]) -> Refusals:
    """Call `do` with each row, and return what it raises because of the row's job."""
    refusals: Refusals = {}
    for row in rows:
        try:
            do(row)
        except (Fenced, Conflict, LedgerBehind, NotFound) as error:
            refusals[row.job] = error
    return refusals


def raise_refusal(refusals: Refusals) -> None:
    """Raise the error of a write for one job, if there is one."""
    for error in refusals.values():
        raise error
