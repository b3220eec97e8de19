"""The queries of NEXMark are one document each, in YAML, SQL and Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.nexmark.queries import EXAMPLES, NAMES
from strandline.core.documents import YamlDocument, read_documents
from strandline.core.lookups.lookup import LookupSpec
from strandline.frontends.joined_texts import JoinedTexts
from strandline.frontends.python.printer import as_python
from strandline.processing.pipelines.model import PipelineSpec
from tests.unit.test_front_ends import of_python

MODELS: dict[str, type[PipelineSpec] | type[LookupSpec]] = {"pipeline": PipelineSpec, "lookup": LookupSpec}


@pytest.mark.parametrize("name", NAMES)
def test_a_query_is_one_document_in_each_form(name):
    documents = read_file(EXAMPLES / f"{name}.yaml")
    wanted = canonical(documents)
    assert canonical(read_file(EXAMPLES / "sql" / f"{name}.sql")) == wanted
    assert of_python(as_python([one.data for one in documents if one.kind == "pipeline"])) == [wanted["pipeline"]]


def read_file(path: Path) -> list[YamlDocument]:
    texts = JoinedTexts()
    texts.add_file(path)
    return read_documents(texts.text, path.name)


def canonical(documents: list[YamlDocument]) -> dict[str, dict[str, object]]:
    """Kind -> what the one model makes of the document."""
    return {one.kind: MODELS[one.kind].parse(one).as_document() for one in documents}


def test_each_file_of_sql_has_its_document():
    assert {path.stem for path in (EXAMPLES / "sql").glob("*.sql")} == set(NAMES)
