"""Where the rows of a lookup come from that is followed: the latest records of a stream by key, or a query of a database."""

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
"""The default of `max_age` is no less."""
AGE_IN_READS = 10
"""The default of `max_age` is so many times `every`."""
QUERY_CHARACTERS_MAX = 20_000
HOLD_MS = 120_000
"""A reading may take so long; longer than any, with all its timeouts."""


class SqlQuery(DocumentModel):
    """A query whose result is the lookup's rows."""

    database: Name
    """Its name in STRANDLINE_SQL_SOURCES, where its URL stands."""
    query: Annotated[str, Field(min_length=1, max_length=QUERY_CHARACTERS_MAX)]
    """One query, as `select id, owner from devices`: its columns are the lookup's fields, by their names."""


class LookupSource(DocumentModel):
    """What is followed, how often, and how old it may be."""

    stream: Name | None = None
    """The stream whose latest record of each key is that key's row."""
    deleted_if: str | None = None
    """Of a stream: a condition on its fields; a record for which it is true deletes the row of its key."""
    sql: SqlQuery | None = None
    """The query of a database."""
    every: Duration = Field(default=EVERY_MS_DEFAULT, json_schema_extra={"default": "1m"})
    """How often it is read."""
    max_age: Duration | None = None
    """Older than this the rows are an alarm. Default: ten times `every`, and 5m at least."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        given = [name for name in ("stream", "sql") if getattr(self, name) is not None]
        if len(given) != 1:
            yield (), "a source is a stream or a query of a database: write 'stream: NAME' or 'sql: {database, query}'"
        if self.sql is not None and self.deleted_if is not None:
            yield ("deleted_if",), "is for a stream; a row that the query doesn't give is deleted"
        if self.every < EVERY_MS_MIN:
            yield ("every",), f"is {format_duration(self.every)}; expected {format_duration(EVERY_MS_MIN)} at least"
        if self.max_age is not None and self.max_age <= self.every:
            yield (
                ("max_age",),
                f"is {format_duration(self.max_age)}, and the source is read every {format_duration(self.every)}: it would "
                "always be too old; write more",
            )

    @property
    def age_ms_max(self) -> int:
        """Older than this the rows are an alarm."""
        return max(AGE_IN_READS * self.every, AGE_MS_MIN) if self.max_age is None else self.max_age

    @property
    def told(self) -> str:
        """What it is, in words."""
        return f"stream {self.stream}" if self.sql is None else f"a query of database {self.sql.database}"
