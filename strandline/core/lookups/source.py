"""Source of the rows of a lookup that is followed: the latest records of a stream by key, or a query of a database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration, Name
from strandline.core.documents import Path
from strandline.core.times.durations import format_duration

EVERY_MS_DEFAULT = 60_000
EVERY_MS_MIN = 5_000
AGE_MS_MIN = 300_000
"""Minimum of the default of `max_age`."""
AGE_IN_READS = 10
"""Factor by which the default of `max_age` is longer than `every`."""
QUERY_CHARACTERS_MAX = 20_000
HOLD_MS = 120_000
"""Time for which a reading keeps its claim. Longer than any reading with all its timeouts."""


class SqlQuery(DocumentModel):
    """A query whose result contains the rows of a lookup."""

    database: Name
    """Name of the database in STRANDLINE_SQL_SOURCES, which contains its URL."""
    query: Annotated[str, Field(min_length=1, max_length=QUERY_CHARACTERS_MAX)]
    """One query, as `select id, owner from devices`. Its columns have the names of the lookup's fields."""


class LookupSource(DocumentModel):
    """Source of the rows, the interval of its readings, and the maximum age of the rows."""

    stream: Name | None = None
    """Stream whose latest record of each key is the row of this key."""
    deleted_if: str | None = None
    """Condition on the fields of a stream. A record for which it is true deletes the row of its key."""
    sql: SqlQuery | None = None
    """Query of a database."""
    every: Duration = Field(default=EVERY_MS_DEFAULT, json_schema_extra={"default": "1m"})
    """Interval between two readings of the source."""
    max_age: Duration | None = None
    """Age of the rows above which an alarm is raised. Default: ten times `every`, at least 5m."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        given = [name for name in ("stream", "sql") if getattr(self, name) is not None]
        if len(given) != 1:
            yield (), "a source is a stream or a query of a database: write 'stream: NAME' or 'sql: {database, query}'"
        if self.sql is not None and self.deleted_if is not None:
            yield ("deleted_if",), "is for a stream; rows that the query doesn't return are deleted"
        if self.every < EVERY_MS_MIN:
            yield ("every",), f"is {format_duration(self.every)}; expected at least {format_duration(EVERY_MS_MIN)}"
        if self.max_age is not None and self.max_age <= self.every:
            yield (
                ("max_age",),
                f"is {format_duration(self.max_age)}, but the source is read every "
                f"{format_duration(self.every)}, so the rows would always be too old; set a longer time",
            )

    @property
    def age_ms_max(self) -> int:
        """Age of the rows in ms above which an alarm is raised."""
        return max(AGE_IN_READS * self.every, AGE_MS_MIN) if self.max_age is None else self.max_age

    @property
    def description(self) -> str:
        """Description of the source, for people."""
        return f"stream {self.stream}" if self.sql is None else f"a query of database {self.sql.database}"
