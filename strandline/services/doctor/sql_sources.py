"""The databases whose queries give rows of lookups, where some are set: whether they answer."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from strandline.core.errors import StrandlineError
from strandline.core.settings import Settings
from strandline.processing.source.followed.query_rows import reading
from strandline.services.doctor.finding import Finding, ok, wrong

SUBJECT = "SQL sources"


def check_sql_sources(settings: Settings) -> Iterator[Finding]:
    """A finding for each."""
    for name, url in settings.sql_sources.items():
        try:
            with reading(name, url.get_secret_value()) as connection:
                connection.execute(sa.select(1))
        except StrandlineError as error:
            yield wrong(SUBJECT, str(error), "look at STRANDLINE_SQL_SOURCES; its user needs no more than to read")
        else:
            yield ok(SUBJECT, f"database {name} answers")
