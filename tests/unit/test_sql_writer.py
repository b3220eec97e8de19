"""What a database says to the writer of a table, and what the writer makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from psycopg import errors

from strandline.core.errors import SinkUnavailable
from strandline.results.document import DocumentShape
from strandline.results.sinks.contract import batch_of
from strandline.results.sinks.sql_writer import SqlWriter

SHAPE = DocumentShape("results", "job", "windows", 1, (), (("n", "long"),), is_elsewhere=True)


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
    with pytest.raises(SinkUnavailable, match=r"takes no results now: (cannot execute|terminating)"):
        writer.write_batches([batch_of(SHAPE, [3])], 1, 1)
