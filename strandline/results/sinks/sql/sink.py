"""Rows of a table in the database of `STRANDLINE_SQL_SINK_URL`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from strandline.core.documents import Path
from strandline.results.names import COLUMN_NAME_LENGTH_MAX
from strandline.results.sinks.sink import (
    EmittedFields,
    ResultsRequest,
    Sink,
    SinkFinding,
    SinkRequest,
    StoredPart,
    own_names_problems,
)

if TYPE_CHECKING:
    from strandline.core.settings import Settings
    from strandline.results.writer import StoreWriter


class SqlSink(Sink):
    description = "A table of a SQL database: {table}."
    named = "table"
    store_prefix = "table:"
    stored_word = "table"
    merges_slices = True
    container = "the table"
    is_compared = True
    keeps_other_results = True
    subject = "SQL sink"

    def document(self) -> Any:
        from strandline.results.sinks.sql.document import SqlSpec

        return SqlSpec

    def problems(self, value: Any, emitted: EmittedFields, path: Path) -> Iterator[tuple[Path, str]]:
        """Yield names that PostgreSQL would cut, so that two columns could become one, and names of Strandline's
        columns."""
        yield from own_names_problems(emitted)
        for name, _ in emitted.fields:
            if len(name) > COLUMN_NAME_LENGTH_MAX:
                yield (
                    path,
                    f"'{name}' has {len(name)} characters, but a table's column can have at most "
                    f"{COLUMN_NAME_LENGTH_MAX}; choose a shorter name, with 'derive' and 'drop' if it is a field of the stream",
                )

    def writer(self, request: SinkRequest) -> StoreWriter:
        from strandline.results.sinks.sql.writer import SqlWriter, sql_url

        return SqlWriter(sql_url(request.settings), request.name, request.shape)

    def emissions_from(
        self, settings: Settings, job: str, stage: str, name: str, first: int
    ) -> Sequence[tuple[int, str]] | None:
        from strandline.results.sinks.sql.writer import emissions_from, sql_url

        return emissions_from(sql_url(settings), name, job, first)

    def counts(self, settings: Settings, job: str, stored: str, first: int) -> Mapping[int, int] | None:
        from strandline.results.sinks.sql.writer import count_emissions, sql_url

        return None if settings.sql_sink_url is None else count_emissions(sql_url(settings), stored, job, first)

    def result_parts(self, settings: Settings, request: ResultsRequest) -> Sequence[StoredPart] | None:
        from strandline.results.sinks.sql.reader import table_parts
        from strandline.results.sinks.sql.writer import sql_url

        return table_parts(sql_url(settings), request)

    def away(self, settings: Settings, timeout_s: float) -> str | None:
        from strandline.results.sinks.sql.writer import responds

        if settings.sql_sink_url is None or responds(settings.sql_sink_url, timeout_s):
            return None
        return "the database of STRANDLINE_SQL_SINK_URL"

    def has_server(self, settings: Settings) -> bool:
        return settings.sql_sink_url is not None

    def examine(self, settings: Settings) -> Iterator[SinkFinding]:
        from strandline.results.sinks.sql.examination import examine_database

        return iter(()) if settings.sql_sink_url is None else examine_database(settings.sql_sink_url)


SINK = SqlSink()
