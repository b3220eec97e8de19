"""The document of a pipeline with branches: from which step each takes, what is refused, and that no other changes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from strandline.core.documents import read_documents
from strandline.core.errors import InvalidDocument
from strandline.core.record_headers import REASON_LOOKUP
from strandline.core.streams.stream import StreamSpec
from strandline.processing.desk.pipeline_graph import pipeline_graph
from strandline.processing.operators.cascade import each_once
from strandline.processing.operators.row_steps import RowProblem, first_problems
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.graph.branches import BRANCHES_MAX
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.results.writer import PROBLEM, WINDOW_END, WINDOW_START

STREAM = """
stream: turbines
schema:
  turbine: string
  site_id: string
  ts: {type: timestamp, unit: ms}
  power: double
  rated_power: double
retention: 2h
"""
HEAD = """
pipeline: farm
input: {stream: turbines}
event_time: {field: ts, delay: 10s}
steps:
"""
LOADED = """
  - derive: {load: power / rated_power}
    name: loaded
"""
PER_TURBINE = """
  - window: {name: per_turbine, tumbling: 1m, by: [turbine, site_id], aggregate: {n: count(*), load: avg(load)}}
    emit: [{elasticsearch: turbine-minute}]
"""
PER_SITE = """
  - window: {name: per_site, tumbling: 5m, by: [site_id], aggregate: {n: count(*), peak: max(load)}}
    from: loaded
    emit: [{elasticsearch: site-5m}]
"""
HOUR = """
  - window: {name: hour, tumbling: 1h, by: [turbine], aggregate: {n: sum(n)}}
    from: per_turbine
    emit: [{elasticsearch: turbine-hour}]
"""
RAW = """
  - emit: [{elasticsearch: turbine-raw}]
    from: turbines
    name: raw
"""


def checked(*steps: str) -> CheckedPipeline:
    (stream,) = read_documents(STREAM, "turbines.yaml")
    (document,) = read_documents(HEAD + "".join(steps), "farm.yaml")
    return check(PipelineSpec.parse(document), StreamSpec.parse(stream), document)


def refused(*steps: str) -> str:
    with pytest.raises(InvalidDocument) as raised:
        checked(*steps)
    return str(raised.value)


def test_branches_take_from_the_steps_that_they_name():
    pipeline = checked(LOADED, PER_TURBINE, PER_SITE, HOUR, RAW)
    assert [(stage.name, pipeline.taken_by(stage.name)) for stage in pipeline.stages] == [
        ("per_turbine", ()),
        ("per_site", ()),
        ("hour", ("per_turbine",)),
    ]
    assert [len(stage.inputs[0].first_steps) for stage in pipeline.stages] == [1, 1, 0]
    assert (pipeline.record_stages[0].name, pipeline.record_stages[0].steps_before) == ("raw", ())
    assert pipeline.reach_ms == 3_660_000
    assert pipeline.inputs[0].columns_needed == ("turbine", "site_id", "ts", "power", "rated_power")
    assert list(pipeline.spec.emissions())[-1][0] == "raw"
    assert not pipeline.spec.emits_records_to("site-5m")


def test_names_may_have_capitals():
    names = ("per_turbine", "perTurbine"), ("loaded", "Loaded")
    steps = [LOADED, PER_TURBINE, PER_SITE, HOUR]
    for old, new in names:
        steps = [step.replace(old, new) for step in steps]
    assert checked(*steps).taken_by("hour") == ("perTurbine",)


def test_a_document_is_stored_as_it_says_and_read_back():
    pipeline = checked(LOADED, PER_TURBINE, PER_SITE, HOUR, RAW)
    stored = pipeline.spec.as_document()
    assert [step.get("from") for step in stored["steps"]] == [None, None, "loaded", "per_turbine", "turbines"]  # type: ignore[attr-defined]
    again = check(PipelineSpec.from_document(stored), pipeline.inputs[0].stream)
    assert (again, again.digest) == (pipeline, pipeline.digest)


@pytest.mark.guarantee(
    "G393",
    "A document without `from:` keeps its meaning: the same stored and compiled form. Errors in names of steps, and "
    "in references to them, have their line.",
    promise="upgrades-backfills-and-resets-mix-no-results",
)
def test_without_from_nothing_is_stored_that_was_not_before():
    pipeline = checked("  - where: power > 1\n", PER_TURBINE.replace("avg(load)", "avg(power)"))
    where, window = pipeline.spec.as_document()["steps"]  # type: ignore[misc]
    assert (where, window.keys()) == ({"where": "power > 1"}, {"window", "emit"})


@pytest.mark.guarantee("G393")
def test_a_name_alone_and_the_step_before_change_nothing():
    linear = checked(LOADED, PER_TURBINE)
    assert checked(LOADED, PER_TURBINE + "    from: loaded\n").identity == linear.identity
    assert checked(LOADED.replace("    name: loaded\n", ""), PER_TURBINE).digest == linear.digest
    assert checked(LOADED, PER_TURBINE, PER_SITE).digest != linear.digest


def test_what_a_window_gives_may_be_taken_before_and_behind_the_steps_of_its_emission():
    emission = "  - derive: {double: n * 2}\n    name: doubled\n  - where: n > 1\n  - emit: [{elasticsearch: turbine-minute}]\n"
    window = PER_TURBINE.split("    emit")[0]
    behind = HOUR.replace("    from: per_turbine\n", "").replace("hour", "linear")
    pipeline = checked(
        LOADED, window, emission, behind, HOUR, HOUR.replace("hour", "half").replace("per_turbine", "doubled")
    )
    first, *others = pipeline.stages
    assert len(first.post_steps) == 2
    assert [(one.name, one.inputs[0].before_post_steps, len(one.inputs[0].steps)) for one in others] == [
        ("linear", False, 0),
        ("hour", True, 0),
        ("half", True, 1),
    ]


@pytest.mark.guarantee("G393")
@pytest.mark.parametrize(
    ("steps", "sentences"),
    [
        (
            [LOADED, PER_TURBINE, PER_SITE.replace("from: loaded", "from: loadet")],
            [
                "farm.yaml:14: steps[2].from: no step above is called 'loadet', and it is not the stream; did you mean 'loaded'?"
            ],
        ),
        (
            [LOADED, PER_TURBINE + "    from: per_site\n", PER_SITE.replace("loaded", "per_turbine")],
            [
                "steps[1].from: 'per_site' is below this step, but a step can only read steps above it. Move 'per_site' up"
            ],
        ),
        (
            [LOADED, PER_SITE.replace("loaded", "per_site")],
            ["steps[1].from: 'per_site' is this step itself; expected a step above it, or the stream 'turbines'"],
        ),
        (
            [LOADED.replace("loaded", "turbines"), PER_TURBINE + "    from: turbines\n"],
            ["steps[1].from: 'turbines' is the stream and a step as well; give the step another name"],
        ),
        (
            [LOADED, "  - where: load > 1\n    name: Loaded\n", PER_TURBINE],
            ["steps[1].name: a step is already called 'loaded'; choose another name"],
        ),
        (
            [LOADED.replace("loaded", "per_turbine"), PER_TURBINE],
            ["steps[1].window.name: a step is already called 'per_turbine'; choose another name"],
        ),
        (
            [LOADED, PER_TURBINE, "  - where: load > 1\n    name: per_turbine\n    from: loaded\n", RAW],
            ["steps[2].name: a step is already called 'per_turbine'; choose another name"],
        ),
        (
            [LOADED, "  - where: load > 1\n", PER_TURBINE + "    from: loaded\n"],
            ["steps[1]: leads to no window and no emit, so it changes nothing; read it in another step, or remove it"],
        ),
        (
            [LOADED, PER_TURBINE.split("    emit")[0], PER_SITE],
            ["steps[1]: no window reads 'per_turbine', so it must emit; write 'emit: [{elasticsearch: NAME}]'"],
        ),
        (
            [LOADED, PER_TURBINE, PER_SITE, HOUR.replace("per_turbine", "per_site")],
            ["steps[3].window.by[0]: unknown column 'turbine'; expected one of: n, peak, site_id"],
        ),
        (
            [
                LOADED,
                PER_TURBINE,
                PER_SITE.replace("5m", "7m"),
                HOUR.replace("by: [turbine]", "by: []").replace("1h", "62s"),
            ],
            ["1m2s of window 'hour' is not a multiple of 1m of window 'per_turbine' before it"],
        ),
        (
            [LOADED, PER_TURBINE, PER_SITE.replace("loaded", "turbines")],
            ["steps[2].window.aggregate.peak: unknown column 'load'"],
        ),
        (
            [LOADED, PER_TURBINE, "  - derive: {more: n + 1}\n  - emit: [{elasticsearch: more}]\n"],
            ["steps[3].emit: window 'per_turbine' already emits; list all sinks in one 'emit'"],
        ),
        (
            [LOADED, PER_TURBINE, PER_SITE, HOUR.replace("1h", "2h")],
            ["the windows and the delay reach back 2h1m10s, but stream 'turbines' keeps records for only 2h"],
        ),
        (
            [
                LOADED,
                *(
                    PER_SITE.replace("per_site", f"s{at}").replace("site-5m", f"s{at}")
                    for at in range(BRANCHES_MAX + 1)
                ),
            ],
            [f"has more than {BRANCHES_MAX} branches with their own keys; split it into several pipelines"],
        ),
    ],
)
def test_mistakes_are_told(steps: list[str], sentences: list[str]):
    told = refused(*steps)
    assert all(sentence in told for sentence in sentences), told


def test_of_several_steps_that_fail_the_first_of_the_document_says_why():
    """Whichever branch came to its step first: the audit goes through them in another order."""
    problems = [
        RowProblem(3, 10, "steps[10].where", "no value"),
        RowProblem(3, 2, "steps[2].enrich", "no row", REASON_LOOKUP),
        RowProblem(1, 5, "steps[5].derive.load", "no value"),
    ]
    expected = {3: "steps[2].enrich", 1: "steps[5].derive.load"}
    assert {one.row: one.step for one in first_problems(problems)} == expected
    assert {one.row: one.step for one in first_problems(problems[::-1])} == expected


def test_a_result_with_a_time_beyond_the_year_9999_fails_once_however_many_take_it():
    """Python has no such time."""
    times = pa.array([900_000_000_000_000_000, None, 0], pa.timestamp("us", tz="UTC"))
    numbers, problems = pa.array([0, 0, 0], pa.int64()), pa.nulls(3, pa.string())
    shown = pa.RecordBatch.from_arrays([numbers, numbers, times, problems], [WINDOW_START, WINDOW_END, "hour", PROBLEM])
    failed = shown.set_column(3, PROBLEM, pa.array(["first", "first", "first"]))
    again = shown.set_column(3, PROBLEM, pa.array(["second", "second", "second"]))
    found = each_once([failed, again], shown, ["hour"])
    assert found.column("hour").equals(times)
    assert found.column(PROBLEM).to_pylist() == ["first"] * 3


def test_the_graph_says_what_is_computed_where():
    graph = pipeline_graph(checked(LOADED, RAW.replace("turbines", "loaded"), PER_TURBINE, PER_SITE, HOUR))
    assert [(one["name"], one["from"], one["steps_before"]) for one in graph["stages"]] == [
        ("per_turbine", "raw", []),
        ("per_site", "raw", []),
        ("hour", "per_turbine", []),
    ]
    assert [(one["stages"], one["by"]) for one in graph["branches"]] == [
        (["per_turbine", "hour"], ["turbine"]),
        (["per_site"], ["site_id"]),
    ]
    sites = HOUR.replace("hour", "site_hour").replace("by: [turbine]", "by: [site_id]")
    both = pipeline_graph(checked(LOADED, PER_TURBINE, HOUR, sites))
    assert both["branches"][1]["again"] == ["per_turbine"]
    assert any("'per_turbine' is computed again for site_hour" in hint for hint in both["hints"])
