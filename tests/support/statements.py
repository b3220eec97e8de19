"""SQL statements that this process executes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa


@contextmanager
def counted_statements() -> Iterator[list[str]]:
    """Collect the SQL of each statement that this process executes."""
    statements: list[str] = []

    def note(connection: object, cursor: object, statement: str, *_: Any) -> None:
        statements.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
