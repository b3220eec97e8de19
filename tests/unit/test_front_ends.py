"""YAML, SQL and Python say the same: each document of the docs and of the examples, in all three forms, is one document."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.nexmark import queries as nexmark
from strandline.core.documents import YamlDocument, read_documents
from strandline.core.errors import InvalidDocument, PermanentError
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.streams.stream import StreamSpec
from strandline.frontends.document_files import with_files
from strandline.frontends.document_text import write_documents
from strandline.frontends.joined_texts import JoinedTexts
from strandline.frontends.python.printer import as_python
from strandline.frontends.sql.printer import as_sql
from strandline.frontends.sql.translation import translate
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.services.cli import commands as command_line
from strandline.services.jobs.checking import check_without_stack

ROOT = Path(__file__).parents[2]


SPECS = {"stream": StreamSpec, "lookup": LookupSpec, "pipeline": PipelineSpec}
EXAMPLES = ROOT / "examples"


def documents_of_the_docs() -> dict[str, str]:
    """Name -> text of each YAML block or file that holds whole documents; the rows that a lookup's file holds are in the text."""
    files = [path for path in sorted(EXAMPLES.rglob("*.yaml")) if path.parent.name != "tests"]
    found = {str(path.relative_to(EXAMPLES)): with_files(path.read_bytes(), path).decode() for path in files}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)):
            try:
                canonical(read_documents(block, page.name, tuple(SPECS)))
            except (InvalidDocument, yaml.YAMLError):
                continue  # a part of a document, or one that names a file
            found[f"{page.name}-{number}"] = block
    return found


def test_whole_documents_of_the_docs_are_taken() -> None:
    """Also by the rules that hold between documents."""
    judged = {name: check_without_stack(text.encode(), name) for name, text in documents_of_the_docs().items()}
    whole = {name: one for name, one in judged.items() if one is not None}  # others name a stream of another block
    assert len(whole) > 30
    assert {name: one.problems for name, one in whole.items() if one.problems} == {}


def canonical(documents: list[YamlDocument]) -> list[dict[str, object]]:
    """Return the documents in canonical form, as the one model reads them."""
    return [SPECS[one.kind].parse(one).as_document() for one in documents]


def of_sql(text: str) -> list[dict[str, object]]:
    """The documents that statements make."""
    return canonical(read_documents(translate(text, "x.sql").yaml, "x.sql"))


def of_python(program: str) -> list[dict[str, object]]:
    """The documents that a program names, in its order."""
    names: dict[str, Any] = {}
    exec(compile(program, "program.py", "exec"), names)
    kinds = ("Stream", "Lookup", "Pipeline")
    return [one.spec.as_document() for one in names.values() if type(one).__name__ in kinds]


DOCUMENTS = documents_of_the_docs()


def test_the_search_finds_the_documents():
    assert {"inputs.yaml", "joins.yaml", "lookup.yaml", "nexmark/q9.yaml", "formats/otlp.yaml", "pipeline.md-1"} <= {
        *DOCUMENTS
    }


@pytest.mark.guarantee(
    "G430",
    "YAML, SQL, and Python are one language. Each document of the docs, of the examples, and of a generator is the "
    "same canonical document in all three forms, and each form can be converted to another.",
    promise="all-forms-of-a-pipeline-agree",
)
@pytest.mark.guarantee(
    "G491",
    "Each NEXMark query is one document, whether it is written in YAML, SQL, or Python.",
    promise="all-forms-of-a-pipeline-agree",
)
@pytest.mark.guarantee("G597")
@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_document_is_the_same_in_yaml_sql_and_python(name):
    """Each document as it is written, and as the canonical document with all its defaults."""
    documents = read_documents(DOCUMENTS[name], name)
    wanted = canonical(documents)
    data = [one.data for one in documents]
    assert canonical(read_documents(write_documents(data), "x.yaml")) == wanted
    for written in (data, wanted):
        sql, program = as_sql(written), as_python(written)
        assert of_sql(sql) == wanted, sql
        assert of_python(program) == wanted, program


def sql_examples() -> list[Path]:
    """Return the YAML files that have an SQL file too."""
    return [path.parents[1] / f"{path.stem}.yaml" for path in sorted(EXAMPLES.rglob("*.sql"))]


@pytest.mark.guarantee("G430")
@pytest.mark.guarantee("G491")
@pytest.mark.parametrize("path", sql_examples(), ids=lambda path: path.stem)
def test_the_examples_in_sql_and_python_are_those_in_yaml(path):
    wanted, texts = canonical(read_documents(with_files(path.read_bytes(), path), path.name)), JoinedTexts()
    texts.add_file(path.parent / "sql" / f"{path.stem}.sql")
    assert sorted(canonical(read_documents(texts.text, path.name)), key=str) == sorted(wanted, key=str)
    program = path.parent / "python" / f"{path.stem}.py"
    assert not program.exists() or of_python(program.read_text()) == wanted


@pytest.mark.parametrize(
    "path", ["nab.yaml", "turbines.yaml", "sql/nab.sql", "sql/turbines.sql", "python/nab.py", "python/turbines.py"]
)
def test_the_first_examples_show_the_silence_after_which_a_partition_holds_no_window_open(path):
    """Said by default, too: but who copies an example is to see that there is such a time."""
    assert "idle_timeout" in (EXAMPLES / path).read_text()


def test_an_example_in_one_of_these_forms_is_there_in_the_other():
    names = {path.stem for path in (EXAMPLES / "sql").glob("*.sql")}
    assert {path.stem for path in (EXAMPLES / "python").glob("*.py")} == names
    assert {path.stem for path in (EXAMPLES / "nexmark" / "sql").glob("*.sql")} == set(nexmark.NAMES)


ONE = "pipeline: p\ninput: {stream: s}\nevent_time: {field: ts, delay: 1s}\nsteps:\n"
WINDOW = "window: {name: w, tumbling: 1m, by: [k], aggregate: {n: count(*)}}\n    emit: [{stream: w}]\n"
NOT_IN_SQL = {
    "an emission that is taken from by its name: rows are taken from what it emits": (
        f"{ONE}  - emit: [{{stream: a}}]\n    name: rows\n  - {WINDOW}    from: rows\n"
    ),
    "a list of one name: the name alone means the same": f"{ONE}  - {WINDOW}    from: [s]\n",
}
"""What SQL refuses to write, with the reason that it gives."""
OTHERWISE_IN_SQL = {
    "an emission in a step directly after its window is written in the window's step": (
        f"{ONE}  - {WINDOW.replace('    emit', '  - emit')}",
        f"{ONE}  - {WINDOW}",
    ),
    "a name that no step takes from is left out": (
        f"{ONE}  - where: k > 1\n    name: large\n  - {WINDOW}",
        f"{ONE}  - where: k > 1\n  - {WINDOW}",
    ),
    "a name of the step before in 'from' is left out": (
        f"{ONE}  - where: k > 1\n    name: large\n  - {WINDOW}    from: large\n",
        f"{ONE}  - where: k > 1\n  - {WINDOW}",
    ),
    "branches are written one after the other": (
        f"{ONE}  - where: k > 1\n    name: a\n  - where: k < 1\n    name: b\n    from: s\n  - {WINDOW}    from: a\n"
        f"  - {WINDOW.replace(': w', ': v')}    from: b\n",
        f"{ONE}  - where: k > 1\n  - {WINDOW}  - where: k < 1\n    from: s\n  - {WINDOW.replace(': w', ': v')}",
    ),
}
"""What SQL says in other steps, with the same results."""


@pytest.mark.guarantee(
    "G541",
    "The parts of documents that SQL can't express are a list with reasons: two that the converter refuses, and four "
    "that it writes as other steps with the same results.",
    promise="all-forms-of-a-pipeline-agree",
)
@pytest.mark.parametrize("text", NOT_IN_SQL.values(), ids=NOT_IN_SQL)
def test_what_sql_can_not_say_is_refused_with_the_reason(text):
    with pytest.raises(PermanentError, match="SQL has no form for"):
        as_sql([one.data for one in read_documents(text, "x.yaml")])


WINDOW_ALONE = WINDOW.split("    emit")[0]
TAKEN_FOR_OTHERS = {
    "a key that is a time of the window before": (
        f"{ONE}  - {WINDOW}  - {WINDOW.replace(': w', ': v').replace('k]', 'k, window_end]')}"
    ),
    "an aggregate that is called like a time of the window": (
        f"{ONE}  - {WINDOW_ALONE.replace('{n:', '{window_end:')}  - select: [k, window_end]\n  - emit: [{{stream: w}}]\n"
    ),
    "a member of a struct that is called like the stream": f"{ONE}  - derive: {{n: s.power}}\n  - {WINDOW}",
}
"""What would be read back as something else, since its words mean something in SQL."""


@pytest.mark.parametrize("text", TAKEN_FOR_OTHERS.values(), ids=TAKEN_FOR_OTHERS)
def test_what_sql_would_read_as_another_pipeline_is_refused(text):
    documents = read_documents(text, "x.yaml")
    canonical(documents)
    with pytest.raises(PermanentError, match="SQL has no form for"):
        as_sql([one.data for one in documents])


COMMENTED = [
    f"{ONE}  - derive: {{load: 'power -- kW'}}\n  - select: [k, load]\n  - emit: [{{stream: w}}]\n",
    f"{ONE}  - where: k > 1 -- large\n  - emit: [{{stream: w}}]\n",
    f"{ONE}  - where: k > 1 -- large\n  - {WINDOW_ALONE.replace('count(*)', 'count(*) -- all')}  - where: n > 1 -- many\n"
    "  - emit: [{stream: w}]\n",
]


@pytest.mark.parametrize("text", COMMENTED)
def test_a_comment_ends_with_its_expression_in_sql(text):
    wanted = re.sub(r" -- \w+", "", text)
    assert of_sql(as_sql([one.data for one in read_documents(text, "x.yaml")])) == canonical(
        read_documents(wanted, "x")
    )


@pytest.mark.guarantee("G541")
@pytest.mark.parametrize(("text", "wanted"), OTHERWISE_IN_SQL.values(), ids=OTHERWISE_IN_SQL)
def test_what_sql_says_in_other_steps(text, wanted):
    assert of_sql(as_sql([one.data for one in read_documents(text, "x.yaml")])) == canonical(
        read_documents(wanted, "x")
    )


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


def test_branches_are_the_same_in_all_three_forms():
    """Compared as data, without defaults."""
    (document,) = read_documents(BRANCHES, "branches.yaml")
    sql = as_sql([document.data])
    (again,) = read_documents(translate(sql, "x.sql").yaml, "x.sql")
    assert again.data == document.data, sql
    names: dict[str, Any] = {}
    exec(program := as_python([document.data]), names)
    assert names["farm_load"].document.data == document.data, program
