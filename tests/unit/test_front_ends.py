"""YAML, SQL and Python say the same: each document of the docs and of the examples, in all three forms, is one document."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from strandline.core.documents import YamlDocument, read_documents
from strandline.core.errors import InvalidDocument
from strandline.core.stream import StreamSpec
from strandline.frontends.document_text import write_documents
from strandline.frontends.python import flow
from strandline.frontends.python.printer import as_python
from strandline.frontends.sql import step_order
from strandline.frontends.sql.printer import as_sql
from strandline.frontends.sql.translation import translate
from strandline.processing.pipelines.model import PipelineSpec
from strandline.services.cli import commands as command_line

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
    # A pipeline that reads several streams has no form in SQL and Python.
    return {name: text for name, text in found.items() if not re.search(r"^inputs:", text, re.MULTILINE)}


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
    documents = [one for one in read_documents(DOCUMENTS[name], name) if one.kind != "lookup"]
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


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "examples" / "sql").glob("*.sql")))
def test_the_examples_in_sql_and_python_are_those_in_yaml(name):
    examples = ROOT / "examples"
    wanted = canonical(read_documents((examples / f"{name}.yaml").read_text(), name))
    sql = translate((examples / "sql" / f"{name}.sql").read_text(), f"{name}.sql")
    assert canonical(read_documents(sql.yaml, name)) == wanted
    assert of_python((examples / "python" / f"{name}.py").read_text()) == wanted


def test_an_example_in_one_of_these_forms_is_there_in_the_other():
    examples = ROOT / "examples"
    names = {path.stem for path in (examples / "sql").glob("*.sql")}
    assert {path.stem for path in (examples / "python").glob("*.py")} == names
    assert names <= {path.stem for path in examples.glob("*.yaml")}


@pytest.fixture
def say(monkeypatch, capsys):
    """Runs the command line, and returns its exit code and what it printed."""

    def say(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["strandline", *arguments])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return say


def test_the_verbs_of_the_desk_take_files_of_sql(say, tmp_path):
    yaml_file, sql_file = str(ROOT / "examples/nab.yaml"), str(ROOT / "examples/sql/nab.sql")
    readings = str(ROOT / "examples/readings.ndjson")
    results = say("pipeline", "run", yaml_file, "--input", readings, "--json")
    assert results[0] == 0 and results[1] and say("pipeline", "run", sql_file, "--input", readings, "--json") == results
    assert say("pipeline", "check", sql_file, "--json") == say("pipeline", "check", yaml_file, "--json")
    assert say("pipeline", "explain", sql_file, "--json") == say("pipeline", "explain", yaml_file, "--json")
    test = tmp_path / "test.yaml"
    test.write_text(
        f"test: one\nfile: {sql_file}\nsteps:\n  - record: {{device: a, timestamp: '2026-11-01', value: 2}}\n"
        "expect: {results: [{strandline.stage: hourly, mean: 2}, {strandline.stage: daily, mean: 2}]}\n"
    )
    assert say("pipeline", "test", str(test))[0] == 0


def test_a_mistake_is_told_with_its_place_in_the_sql(say, tmp_path):
    file = tmp_path / "nab.sql"
    file.write_text((ROOT / "examples/sql/nab.sql").read_text().replace("avg(value)", "avg(valu)"))
    code, _, error = say("pipeline", "check", str(file))
    assert code == 1
    assert error.startswith(
        f"{file}:11:18: steps[0].window.aggregate.mean: unknown column 'valu' at character 5; did you"
    )


@pytest.mark.parametrize("form", ["yaml", "sql"])
def test_a_file_is_shown_in_each_form(say, form, tmp_path):
    file = str(ROOT / ("examples/sql/nab.sql" if form == "sql" else "examples/nab.yaml"))
    wanted = canonical(read_documents((ROOT / "examples/nab.yaml").read_text(), "nab"))
    assert canonical(read_documents(say("pipeline", "show", file)[1], "shown")) == wanted
    assert (
        canonical(read_documents(translate(say("pipeline", "show", file, "--as", "sql")[1], "x").yaml, "x")) == wanted
    )
    assert of_python(say("pipeline", "show", file, "--as", "python")[1]) == wanted
    assert json.loads(say("pipeline", "show", file, "--json")[1]) == {"documents": wanted}
    wrong = tmp_path / "wrong.sql"
    wrong.write_text("create stream s (a strin)")
    assert say("pipeline", "show", str(wrong))[2].startswith(f"{wrong}:1:18: schema.a")


BRANCHES = """
pipeline: farm-load
input: {stream: farm}
event_time: {field: ts, delay: 10s}
steps:
  - derive: {load: power / rated_power}
    name: loaded
  - window: {name: per_turbine, tumbling: 1m, by: [turbine, site_id], aggregate: {n: count(*), load: avg(load)}}
    emit: [{elasticsearch: turbine-minute}]
  - window: {name: turbine_hour, tumbling: 1h, by: [turbine], aggregate: {n: sum(n), load: max(load)}}
    emit: [{elasticsearch: turbine-hour}]
  - window: {name: per_site, tumbling: 5m, by: [site_id], aggregate: {n: count(*), peak: max(load)}}
    from: loaded
    emit: [{elasticsearch: site-5m}]
  - window: {name: site_hour, tumbling: 1h, by: [site_id], aggregate: {n: sum(n)}}
    from: per_turbine
  - where: n > 3
  - emit: [{elasticsearch: site-hour}]
  - where: load > 0.9
    from: loaded
  - emit: [{elasticsearch: turbine-alarm}]
    name: alarms
  - emit: [{elasticsearch: everything}]
    from: farm
"""


def test_branches_are_the_same_in_all_three_forms(monkeypatch):
    """As data: which of them the model takes is its own affair."""
    monkeypatch.setattr(step_order, "_have_branches", lambda: True)
    (document,) = read_documents(BRANCHES, "branches.yaml")
    sql = as_sql([document.data])
    (again,) = read_documents(translate(sql, "x.sql").yaml, "x.sql")
    assert again.data == document.data, sql
    steps: list[Any] = []
    monkeypatch.setattr(flow.Flow, "pipeline", lambda self, name: steps.extend(one.document for one in self._steps))
    program = as_python([document.data])
    of_python(program)
    assert steps == document.data["steps"], program
