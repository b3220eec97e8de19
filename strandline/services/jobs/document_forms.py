"""Forms of the documents of a request: YAML or SQL. Documents are checked, planned, and stored as YAML."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from strandline.core.documents import read_documents
from strandline.core.errors import Conflict, InvalidDocument, PermanentError
from strandline.frontends.document_text import write_documents
from strandline.frontends.sql.printer import as_sql
from strandline.frontends.sql.read_back import DOCUMENT_MODELS
from strandline.frontends.sql.translation import translate
from strandline.processing.aggregates.registry import BUILT_IN
from strandline.processing.pipelines.functions.table import TABLE
from strandline.services.processes.limited_work import RunLimited, run_here


class DocumentForm(StrEnum):
    """Form of a text of documents."""

    YAML = "yaml"
    SQL = "sql"


@dataclass(frozen=True)
class SentDocuments:
    """Documents as a client sent them."""

    text: bytes
    form: DocumentForm = DocumentForm.YAML

    @contextmanager
    def as_yaml(self, source: str, run_limited: RunLimited = run_here) -> Iterator[bytes]:
        """Yield the documents in YAML. Problems that are raised in the block get their positions in the sent text.

        Raises InvalidDocument with the problems of SQL statements, TooExpensive, TransientError.
        """
        if self.form is DocumentForm.YAML:
            yield self.text
            return
        translation = run_limited("check", translate, self.text, source)
        try:
            yield translation.yaml.encode()
        except InvalidDocument as error:
            raise InvalidDocument([translation.locate_in_sql(one) for one in error.problems]) from error


def functions_of_expressions() -> list[dict[str, str]]:
    """Return the functions that expressions can call, for editors: name, an example of a call, and description."""
    scalars = [{"name": one.name, "call": one.call, "description": one.says} for one in TABLE]
    return [
        *({"name": one.name, "call": one.call, "description": "aggregate of a window"} for one in BUILT_IN),
        *scalars,
    ]


def converted(sent: SentDocuments, form: DocumentForm, source: str) -> str:
    """Return the documents in this form, without their comments. References between documents aren't checked.

    Raises InvalidDocument; Conflict if a part of the documents has no form in SQL.
    """
    with sent.as_yaml(source) as text:
        documents = read_documents(text, source)
        for document in documents:
            if document.kind in DOCUMENT_MODELS:
                DOCUMENT_MODELS[document.kind].parse(document)
    data = [document.data for document in documents]
    if form is DocumentForm.YAML:
        return write_documents(data)
    try:
        return as_sql(data)
    except PermanentError as error:
        raise Conflict(str(error)) from error
