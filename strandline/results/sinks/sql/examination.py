"""Check of the database of `emit: [{sql: ...}]`: whether it responds, and whether a table can be created."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import sqlalchemy as sa

from strandline.core.sql_connections import LIBPQ_TIMEOUTS
from strandline.ledger.database import CONNECT_TIMEOUT_S, without_secrets
from strandline.results.sinks.sink import SinkFinding


def examine_database(url: str) -> Iterator[SinkFinding]:
    """Yield the finding. Raises InvalidSettings for an invalid URL."""
    shown = without_secrets(url)
    is_postgresql = url.startswith("postgresql")
    timeouts = {"connect_timeout": CONNECT_TIMEOUT_S, **LIBPQ_TIMEOUTS} if is_postgresql else {}
    engine = sa.create_engine(url, connect_args=timeouts)
    table = sa.Table(f"strandline_doctor_{uuid.uuid4().hex[:12]}", sa.MetaData(), sa.Column("id", sa.Integer))
    doing = "be reached"
    try:
        with engine.begin() as connection:
            doing = "create a table for the check"
            table.create(connection)
            connection.execute(table.insert(), [{"id": 1}])
            table.drop(connection)
    except sa.exc.SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        remedy = "check STRANDLINE_SQL_SINK_URL; its user needs CREATE on the schema, or rights on existing tables"
        yield SinkFinding(f"the database {shown} can't {doing}: {reason}", remedy)
        return
    finally:
        engine.dispose()
    yield SinkFinding(f"a table can be created and written at {shown}")
