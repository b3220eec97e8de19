"""YAML, SQL and Python say the same: each document of the docs and of the examples, in all three forms, is one document."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from strandline.core.documents import YamlDocument, read_documents
from strandline.core.errors import InvalidDocument
from strandline.core.stream import StreamSpec
from strandline.frontends.document_text import write_documents
from strandline.frontends.python.printer import as_python
from strandline.frontends.sql.printer import as_sql
from strandline.frontends.sql.translation import translate
from strandline.processing.pipelines.model import PipelineSpec

ROOT = Path(__file__).parents[2]


def documents_of_the_docs() -> dict[str, str]:
    """Name -> text of each YAML block or file that holds whole documents of streams and pipelines."""
    found = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "examples").glob("*.yaml"))}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)):
            try:
                read_documents(block, page.name)
            except (InvalidDocument, yaml.YAMLError):
                continue  # a part of a document
            found[f"{page.name}-{number}"] = block
    return found


DOCUMENTS = documents_of_the_docs()


def canonical(documents: list[YamlDocument]) -> list[dict[str, object]]:
    """What the one model makes of documents."""
    return [(StreamSpec if one.kind == "stream" else PipelineSpec).parse(one).as_document() for one in documents]


def of_python(program: str) -> list[dict[str, object]]:
    """The documents that a program names, in its order."""
    names: dict[str, Any] = {}
    exec(compile(program, "program.py", "exec"), names)
    kinds = ("Stream", "Pipeline")
    found = [one for name, one in names.items() if type(one).__name__ in kinds and name != "stream"]
    return [one.spec.as_document() for one in found]


def test_the_search_finds_the_documents():
    assert len(DOCUMENTS) >= 9 and "pipeline.md-1" in DOCUMENTS, list(DOCUMENTS)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_document_is_the_same_in_yaml_sql_and_python(name):
    documents = read_documents(DOCUMENTS[name], name)
    wanted = canonical(documents)
    data = [one.data for one in documents]
    sql = as_sql(data)
    assert canonical(read_documents(translate(sql, "x.sql").yaml, "x.sql")) == wanted, sql
    program = as_python(data)
    assert of_python(program) == wanted, program
    written = write_documents(data)
    assert canonical(read_documents(written, "x.yaml")) == wanted, written
    # The canonical documents, with all their defaults, can be written as well.
    assert canonical(read_documents(translate(as_sql(wanted), "x.sql").yaml, "x.sql")) == wanted
    assert of_python(as_python(wanted)) == wanted
