"""The field `sql` of an emission."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from strandline.core.document_model import DocumentModel


class SqlSpec(DocumentModel):
    """An emission to a table. `STRANDLINE_SQL_SINK_URL` contains the database."""

    table: Annotated[str, Field(pattern=r"^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}$")]
    """Name of the table, optionally with the schema and a dot."""
