"""Check of the databases whose queries provide rows of lookups, if any are configured."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from strandline.core.errors import StrandlineError
from strandline.core.settings import Settings
from strandline.processing.source.followed.query_rows import reading
from strandline.services.doctor.finding import Finding, ok, wrong

SUBJECT = "SQL sources"


def check_sql_sources(settings: Settings) -> Iterator[Finding]:
    """Yield a finding for each database."""
    for name, url in settings.sql_sources.items():
        try:
            with reading(name, url.get_secret_value()) as connection:
                connection.execute(sa.select(1))
        except StrandlineError as error:
            yield wrong(SUBJECT, str(error), "check STRANDLINE_SQL_SOURCES; its user needs only read access")
        else:
            yield ok(SUBJECT, f"database {name} answers")
