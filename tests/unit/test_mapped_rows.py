"""Python functions in `map` steps: which may be called, what becomes of rows that they fail for, and what stops a job."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.core.documents import read_documents
from strandline.core.errors import FunctionUnusable, InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.kinds.derive.step import Derive
from strandline.processing.kinds.map_rows import operator as mapped_rows
from strandline.processing.kinds.map_rows.step import MapRows
from strandline.processing.operators.row_steps import RowSteps, SteppedRows
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.functions.installed import installed_function, package_of
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from tests.support.installed_package import install

DOCUMENTS = """
stream: temps
format: json
schema: {sensor: string, ts: timestamp, temp: "double?", word: "string?"}
---
pipeline: warm
input: {stream: temps}
event_time: {field: ts, delay: 1s}
steps:
  - map: {function: "acme_quality:fahrenheit", reads: [temp], columns: {warm: double}, deterministic: true}
  - derive: {hot: warm > 90}
  - emit: [{elasticsearch: warm}]
"""
ALLOW = "STRANDLINE_ALLOW_FUNCTIONS"


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(install(tmp_path))
    monkeypatch.setenv(ALLOW, "acme_quality")
    package_of.cache_clear()
    yield tmp_path
    package_of.cache_clear()
    sys.modules.pop("acme_quality", None)


def checked(text: str = DOCUMENTS) -> CheckedPipeline:
    stream, pipeline = read_documents(text, "warm.yaml")
    return check(PipelineSpec.parse(pipeline), StreamSpec.parse(stream), pipeline)


def problems(old: str, new: str) -> str:
    assert old in DOCUMENTS
    with pytest.raises(InvalidDocument) as refused:
        checked(DOCUMENTS.replace(old, new))
    return str(refused.value)


def step(function: str, reads: tuple[str, ...] = ("temp",), **columns: str) -> MapRows:
    found = {"warm": "double"} | columns if reads == ("temp",) else columns
    named = tuple((name, kind.removesuffix("?")) for name, kind in found.items())
    optional = tuple(name for name, kind in found.items() if kind.endswith("?"))
    name = f"acme_quality:{function}"
    return MapRows(0, name, reads, named, optional, package_of(name))


def mapped(one: MapRows, **columns: list[Any]) -> SteppedRows:
    types = {"temp": pa.float64(), "word": pa.string()}
    arrays = {name: pa.array(values, types[name]) for name, values in columns.items()}
    known = {name: "double" if name == "temp" else "string" for name in columns}
    return RowSteps([one], known).apply(arrays, len(next(iter(columns.values()))))


def test_a_function_of_an_installed_package_adds_columns() -> None:
    pipeline = checked()
    steps = RowSteps(pipeline.all_stages[0].steps_before, pipeline.inputs[0].stream.types)
    found = steps.apply({"temp": pa.array([20.0, 100.0, None])}, 3)
    assert found.columns["warm"].to_pylist() == [68.0, 212.0, None]
    assert found.columns["hot"].to_pylist() == [False, True, None]
    assert (found.problems, found.rows.tolist()) == ([], [0, 1, 2])
    assert set(steps.columns_read) == {"warm", "temp"}
    assert pipeline.inputs[0].columns_needed == ("sensor", "ts", "temp", "word")
    assert pipeline.functions == {"acme_quality:fahrenheit": "acme-quality 1.2.0"}
    assert isinstance(pipeline.all_stages[0].steps_before[1], Derive)


@pytest.mark.guarantee("G414")
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("acme_quality:fahrenheit", "os:system", "os:system is not allowed here: an operator allows it by STRANDLINE_ALLOW_"),
        ("acme_quality:fahrenheit", "acme_quality:system", "is only imported in acme_quality, not defined there"),
        ("acme_quality:fahrenheit", "acme_quality:nothing", "acme_quality has no function 'nothing'"),
        ("acme_quality:fahrenheit", "acme_quality:number", "acme_quality has no function 'number'"),
        ("acme_quality:fahrenheit", "acme_quality.fahrenheit", "String should match pattern"),
        ("acme_quality:fahrenheit", "acme_quality:random.random", "String should match pattern"),
        ("deterministic: true", "deterministic: false", "must be true: a replay must compute the same results"),
        ("{warm: double}", "{warm: float}", "'float' is not a type; expected one of: string, long"),
        ('{warm: double}', '{temp: double}', "a column is already called 'temp'"),
        ("reads: [temp]", "reads: [tmp]", "unknown column 'tmp'; did you mean 'temp'?"),
        ("reads: [temp]", "reads: [temp, temp]", "'temp' is listed twice"),
    ],
)  # fmt: skip
def test_what_may_not_be_called_is_refused_when_the_document_is_applied(old: str, new: str, said: str) -> None:
    assert said in problems(old, new)


@pytest.mark.guarantee(
    "G414",
    "A pipeline calls only Python functions that the operator has allowed, and nothing else is imported for it.",
    promise="secrets-and-connections-are-protected",
)
def test_nothing_is_imported_that_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    for allowed in ("", "acme", "acme_quality:spelled", "acme_quality.", "*"):
        monkeypatch.setenv(ALLOW, allowed)
        with pytest.raises(FunctionUnusable, match="is not allowed here"):
            installed_function("acme_quality:fahrenheit")
    assert "acme_quality" not in sys.modules
    monkeypatch.setenv(ALLOW, "other.package, acme_quality:system")
    assert callable(installed_function("acme_quality:system")), "an operator may name any one"


def test_a_module_of_no_package_and_one_that_fails_are_refused(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package / "loose.py").write_text("def f(batch): return batch")
    (package / "acme_quality.py").write_text("raise RuntimeError('no licence')")
    monkeypatch.setenv(ALLOW, "loose,acme_quality")
    with pytest.raises(FunctionUnusable, match="loose:f belongs to no installed package"):
        installed_function("loose:f")
    with pytest.raises(FunctionUnusable, match="acme_quality can't be imported: RuntimeError: no licence"):
        installed_function("acme_quality:f")


def test_a_stored_pipeline_can_be_read_where_its_function_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example in the status of a job. Only a run of it stops with the error."""
    pipeline = checked()
    monkeypatch.setenv(ALLOW, "")
    again = check(PipelineSpec.from_document(pipeline.spec.as_document()), pipeline.inputs[0].stream)
    assert again == pipeline
    with pytest.raises(FunctionUnusable, match="is not allowed here"):
        RowSteps(again.all_stages[0].steps_before, again.inputs[0].stream.types).apply({"temp": pa.array([1.0])}, 1)


@pytest.mark.guarantee(
    "G415",
    "A record for which a function of a `map` step fails is a dead letter, with at most two calls per record, and its "
    "neighbours have their values.",
    promise="each-rejected-record-is-one-dead-letter",
)
@pytest.mark.parametrize("bad", [{3}, {0, 9}, set(range(10)), {4, 5, 6}, set()])
def test_a_row_that_the_function_fails_for_has_a_problem_and_its_neighbours_have_none(bad: set[int]) -> None:
    words = ["none" if row in bad else ["zero", "two", "three"][row % 3] for row in range(10)]
    found = mapped(step("spelled", ("word",), n="long"), word=words)
    assert [problem.row for problem in found.problems] == sorted(bad)
    assert found.rows.tolist() == [row for row in range(10) if row not in bad]
    assert found.columns["n"].to_pylist() == [[0, 2, 3][row % 3] for row in range(10) if row not in bad]
    if bad:
        assert found.problems[0].message == (
            "steps[0].map: acme_quality:spelled failed with ValueError: 'none' is not in list"
        )


def test_a_function_is_called_twice_for_each_bad_row_at_most() -> None:
    calls: list[int] = []

    def failing(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        raise ValueError

    steps = mapped_rows.MappedRows(step("fahrenheit"))
    steps._function = failing
    steps._batches = mapped_rows.CHECKED_FIRST
    _, errors = steps({"temp": pa.array([1.0] * 1_000)}, 1_000)
    assert len(errors) == 1_000
    assert len(calls) == 1_999


@pytest.mark.guarantee(
    "G416",
    "A function of a `map` step stops the job if it isn't repeatable, depends on other rows, or is of another release "
    "than at the start. Each run reports the releases that it calls.",
    promise="results-depend-only-on-the-log",
)
@pytest.mark.parametrize("function", ["at_random", "above_the_mean"])
def test_a_function_that_depends_on_more_than_the_row_stops_the_job(function: str) -> None:
    with pytest.raises(FunctionUnusable) as stopped:
        mapped(step(function), temp=[1.0, 2.0, 4.0])
    assert str(stopped.value).startswith(
        f"steps[0].map: acme_quality:{function} of acme-quality 1.2.0 returned other values of warm when it was called again"
    )


NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "values", "other"),
    [
        ("double", [0.0, NAN, None], -0.0),
        ("array<double>", [[NAN, None, 0.0], None, []], [NAN, None, -0.0]),
        ("array<double>", [[], None, [NAN]], None),
        ("array<string>", [["a"], None, []], ["a", "a"]),
        ("struct<x: double, n: long>", [{"x": NAN, "n": 1}, None, {"x": None, "n": None}], {"x": NAN, "n": 2}),
        ("struct<x: double>", [{"x": None}, None, {"x": NAN}], None),
        ("array<struct<l: array<double>>>", [[{"l": [NAN, 0.0]}], [None, {"l": None}], []], [{"l": [NAN, -0.0]}]),
    ],
)
def test_values_are_the_same_to_the_last_bit_within_arrays_and_structs_too(
    kind: str, values: list[Any], other: Any
) -> None:
    """A NaN equals itself, and a zero differs from a negative zero."""
    one = step("fahrenheit", warm=kind)
    steps = mapped_rows.MappedRows(one)

    def function(batch: pa.RecordBatch) -> pa.RecordBatch:
        found = [values[int(row)] for row in batch.column("temp").to_pylist()]
        return pa.RecordBatch.from_arrays([pa.array(found, arrow_type(kind))], ["warm"])

    steps._function = function
    steps({"temp": pa.array([2.0, 0.0, 1.0, 0.0, 1.0, 2.0])}, 6)
    # The rows in two parts are single ones.
    steps._function = lambda batch: (
        function(batch)
        if batch.num_rows == 2
        else pa.RecordBatch.from_arrays([pa.array([other], arrow_type(kind))], ["warm"])
    )
    with pytest.raises(FunctionUnusable, match="returned other values of warm"):
        steps({"temp": pa.array([0.0, 0.0])}, 2)


def test_a_function_is_looked_at_again_now_and_then() -> None:
    calls: list[int] = []
    one = step("fahrenheit")
    steps = mapped_rows.MappedRows(one)
    function = installed_function(one.function)
    steps._function = lambda batch: (calls.append(batch.num_rows), function(batch))[1]
    for _ in range(200):
        steps({"temp": pa.array([1.0, 2.0])}, 2)
    again = mapped_rows.CHECKED_FIRST + 2
    assert calls.count(2) == 200
    assert calls.count(1) == 2 * again


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("half_of_the_rows", "returned 1 rows for 2; expected one for each, in their order"),
        ("of_another_type", "returned warm as string; expected double"),
        ("of_another_name", "returned the columns cold; expected warm: double"),
        ("no_batch", "returned a dict; expected a RecordBatch with warm: double"),
    ],
)
def test_an_answer_of_another_form_stops_the_job(function: str, said: str) -> None:
    with pytest.raises(FunctionUnusable) as stopped:
        mapped(step(function), temp=[1.0, 2.0])
    assert str(stopped.value) == f"steps[0].map: acme_quality:{function} of acme-quality 1.2.0 {said}"


def test_no_value_is_a_problem_unless_the_type_says_that_it_may_be() -> None:
    found = mapped(step("none_below_zero"), temp=[1.0, -1.0, None])
    assert [problem.message for problem in found.problems] == [
        "steps[0].map: acme_quality:none_below_zero returned no value for warm"
    ]
    assert found.columns["warm"].to_pylist() == [1.0, None]
    found = mapped(step("none_below_zero", warm="double?"), temp=[1.0, -1.0, None])
    assert found.columns["warm"].to_pylist() == [1.0, None, None]
    assert mapped(step("none_below_zero"), temp=[]).columns["warm"].type == pa.float64()


@pytest.mark.guarantee("G416")
def test_another_release_than_where_the_job_was_started_stops_it(package: Path) -> None:
    pipeline = checked()
    (package / "acme_quality-1.2.0.dist-info").rename(package / "old")
    install(package, "1.3.0")
    package_of.cache_clear()
    with pytest.raises(FunctionUnusable) as stopped:
        RowSteps(pipeline.all_stages[0].steps_before, pipeline.inputs[0].stream.types).apply(
            {"temp": pa.array([1.0])}, 1
        )
    assert "belongs to acme-quality 1.3.0 here, but to acme-quality 1.2.0 where the job was started" in str(
        stopped.value
    )
    assert checked().identity != pipeline.identity


def test_the_command_line_runs_a_pipeline_with_a_function(package: Path) -> None:
    document, records = package / "warm.yaml", package / "temps.ndjson"
    document.write_text(DOCUMENTS)
    records.write_text(
        '{"sensor": "a", "ts": 1767225600000, "temp": 100}\n{"sensor": "b", "ts": 1767225601000, "temp": 20}\n'
    )
    program = Path(sys.executable).with_name("strandline")
    command = [program, "pipeline", "run", document, "--input", records, "--json"]
    environment = {"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin", "HOME": str(package), ALLOW: "acme_quality"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert '"warm":212.0,"hot":true' in done.stdout.replace(" ", "")
    refused = subprocess.run(
        command, env={**environment, ALLOW: "acme_quality:spelled"}, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert "acme_quality:fahrenheit is not allowed here" in refused.stderr


def test_a_function_behind_a_window_is_called_before_its_emission_and_before_a_further_window() -> None:
    """The call was omitted there."""
    stream, pipeline = read_documents(DOCUMENTS, "warm.yaml")
    window = {"name": "w", "tumbling": "1s", "by": ["sensor"], "aggregate": {"temp": "max(temp)"}}
    further = {"name": "x", "tumbling": "2s", "by": ["sensor"], "aggregate": {"warm": "max(warm)"}}
    mapped = {"map": pipeline.data["steps"][0]["map"]}  # type: ignore[index]
    steps = [{"window": window}, mapped, {"window": further, "emit": [{"elasticsearch": "x"}]}]
    document = {**pipeline.data, "steps": [*steps, {"from": "w", **mapped}, {"emit": [{"elasticsearch": "w"}]}]}
    stages = check(PipelineSpec.from_document(document), StreamSpec.parse(stream)).stages
    assert (
        [type(step) for step in stages[0].post_steps] == [type(step) for step in stages[1].inputs[0].steps] == [MapRows]
    )
