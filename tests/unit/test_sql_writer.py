"""The answers of a database to the writer of a table, and how the writer treats them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from psycopg import errors

from strandline.core.errors import Conflict, SinkUnavailable
from strandline.results.document import DocumentShape
from strandline.results.sinks.contract import batch_of
from strandline.results.sinks.sql.writer import SqlWriter

SHAPE = DocumentShape("results", "job", "windows", 1, (("device", "string"),), (("n", "long"),), is_elsewhere=True)


@pytest.mark.parametrize(
    "error",
    [
        errors.ReadOnlySqlTransaction("cannot execute INSERT in a read-only transaction"),
        errors.IdleInTransactionSessionTimeout("terminating connection due to idle-in-transaction timeout"),
    ],
    ids=lambda error: str(error.sqlstate),
)
def test_a_database_that_fails_over_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The rows are tried again, and are there; where that takes too long, the job waits instead of failing."""
    url = f"sqlite:///{tmp_path / 'results.sqlite'}"
    writer = SqlWriter(url, "results", SHAPE, deadline_s=0.5)
    writer.prepare(None)
    insert, refusals = SqlWriter._insert, [error]

    def refused_at_first(*arguments: object) -> int:
        if refusals:
            raise sa.exc.InternalError("INSERT", {}, refusals.pop())
        return insert(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SqlWriter, "_insert", refused_at_first)
    assert writer.write_batches([batch_of(SHAPE, [1, 2])], 1, 1).created == 2
    refusals += [error] * 100
    with pytest.raises(SinkUnavailable, match=r"accepts no results now: (cannot execute|terminating)"):
        writer.write_batches([batch_of(SHAPE, [3])], 1, 1)


@pytest.mark.guarantee("G244")
@pytest.mark.parametrize(
    "error",
    [
        sa.exc.OperationalError(
            "INSERT", {}, errors.ProgramLimitExceeded("index row size 3016 exceeds btree version 4 maximum 2704")
        ),
        sa.exc.ProgrammingError("INSERT", {}, errors.RaiseException("no turbine has three blades too many")),
    ],
    ids=lambda error: str(error.orig.sqlstate),
)
def test_a_row_that_the_database_refuses_is_refused_at_once_and_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: sa.exc.DBAPIError
) -> None:
    """The driver's classes say that the database is away, or that the statement is wrong."""
    writer = SqlWriter(f"sqlite:///{tmp_path / 'results.sqlite'}", "results", SHAPE, deadline_s=60)
    writer.prepare(None)
    insert, tried = SqlWriter._insert, list[int]()

    def refused(self: SqlWriter, values: Sequence[Mapping[str, Any]]) -> int:
        tried.append(len(values))
        if any(row["n"] == 3 for row in values):
            raise error
        return insert(self, values)

    monkeypatch.setattr(SqlWriter, "_insert", refused)
    report = writer.write_batches([batch_of(SHAPE, [1, 2, 3, 4])], 1, 1)
    assert (report.created, [one.reason for one in report.refused]) == (3, [str(error.orig)])
    assert tried == [4, 2, 2, 1, 1], "nothing was tried again"


def test_what_no_row_is_to_blame_for_stops_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost right; and a table that can't get another column, which PostgreSQL counts among the limits of rows."""
    writer = SqlWriter(f"sqlite:///{tmp_path / 'results.sqlite'}", "results", SHAPE, deadline_s=60)

    def says(error: sa.exc.DBAPIError) -> Any:
        def refused(*_: object) -> None:
            raise error

        return refused

    monkeypatch.setattr(
        SqlWriter, "_insert", says(sa.exc.ProgrammingError("INSERT", {}, errors.InsufficientPrivilege("not for you")))
    )
    with pytest.raises(Conflict, match="table results accepts no results: not for you"):
        writer.write_batches([batch_of(SHAPE, [1, 2])], 1, 1)
    monkeypatch.setattr(
        SqlWriter, "_ensure_table", says(sa.exc.OperationalError("ALTER", {}, errors.TooManyColumns("at most 1600")))
    )
    with pytest.raises(Conflict, match="table results accepts no results: at most 1600"):
        writer.prepare(None)
