"""Joins of windows' results, and with the latest row: what their document may say, where they reach, and how they are said in SQL
and Python. What they compute: `tests/property/test_result_joins.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline import stream, tumbling
from strandline.core.errors import InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.frontends.sql.translation import translate
from strandline.processing.desk.case_run import read_cases, run_case
from strandline.processing.desk.desk import Desk, DeskResult
from strandline.processing.desk.pipeline_graph import pipeline_graph
from strandline.processing.desk.records import DeskRecords
from strandline.processing.kinds.join.operator import result_places
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.graph.branches import plan_branches
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.upgrade import changes_between
from strandline.results.writer import WINDOW_END, WINDOW_START

EXAMPLES = Path(__file__).parents[2] / "examples"
STREAM = StreamSpec.from_document(
    {
        "stream": "plant",
        "schema": {"machine": "string", "site": "string", "ts": {"type": "timestamp", "unit": "ms"}, "power": "double"},
    }
)


def window(name: str, by: list[str], shape: dict[str, Any], source: str = "plant") -> dict[str, Any]:
    aggregate = {"power": "max(power)"}
    return {"window": {"name": name, **shape, "by": by, "aggregate": aggregate}, "from": source}


def join(**more: Any) -> dict[str, Any]:
    fields = {
        "name": "met",
        "left": "a",
        "right": "b",
        "on": ["machine"],
        "add": {"one": "left.power", "two": "right.power"},
    }
    return {"join": {**fields, **more}, "emit": [{"elasticsearch": "met"}]}


def pipeline(*steps: dict[str, Any], **more: Any) -> CheckedPipeline:
    event_time = {"field": "ts", "delay": "0s", "max_ahead": None}
    document = {"pipeline": "job", "input": {"stream": "plant"}, "event_time": event_time, "steps": list(steps), **more}
    return check(PipelineSpec.from_document(document), STREAM)


MINUTE, HOUR = {"tumbling": "1m"}, {"tumbling": "1h"}
BOTH = window("a", ["machine"], MINUTE), window("b", ["machine", "site"], MINUTE)


def test_the_tests_of_the_examples_pass() -> None:
    for name in ("result-joins", "latest-joins"):
        (report,) = [run_case(case, EXAMPLES / "tests") for case in read_cases(EXAMPLES / f"tests/{name}.yaml")]
        assert report.passed, report


@pytest.mark.guarantee(
    "G596",
    "An unsupported join of results or of `latest` is refused with a remedy: windows that differ or overlap, records "
    "without a window, a latest row without a bound. The reach is that of the longer path plus the join, and each "
    "stream's retention must cover it.",
    promise="unusable-documents-are-refused",
)
def test_what_can_not_be_joined_is_refused_with_what_to_do() -> None:
    refused: list[tuple[list[dict[str, Any]], str]] = [
        (
            [BOTH[0], window("b", ["machine"], {"tumbling": "5m"}), join(same_window=True)],
            r"same_window: the windows on the left are 1m, those on the right 5m; use equal windows, or join 'within' a time",
        ),
        (
            [BOTH[0], join(right="plant", same_window=True)],
            r"right: consists of records, which have no window, but 'same_window' joins results of",
        ),
        (
            [BOTH[0], window("b", ["machine"], {"session": {"gap": "1m"}}), join(same_window=True)],
            r"right: reads the results of 'b', whose windows begin and end with records.*join them 'within' a time",
        ),
        (
            [*BOTH, join(tumbling="90s")],
            "join.tumbling: 1m30s of window 'met' is not a multiple of 1m of window 'a' before it, whose windows would straddle",
        ),
        ([*BOTH, join(tumbling="1m", same_window=True)], "a join has exactly one of: within, tumbling, same_window"),
        ([*BOTH, join(on=["site"], same_window=True)], "the left side has no column 'site'"),
        ([*BOTH, join(within="1m", latest=True)], r"latest: needs only 'within: {before: ...}'"),
        (
            [*BOTH, join(within={"before": "1m"}, latest=True, type="full")],
            r"'full' would return each row on the right",
        ),
        ([*BOTH, join(within={"before": "1m"}, latest=True, max_rows=5)], r"a row has at most one partner"),
        ([*BOTH, join(tumbling="1m", latest=True)], r"latest: needs only 'within"),
    ]
    for steps, message in refused:
        with pytest.raises(InvalidDocument, match=message):
            pipeline(*steps)


@pytest.mark.guarantee("G596")
def test_reach_is_that_of_the_longer_way_and_the_join() -> None:
    slower = window("b", ["machine"], HOUR, "a")
    assert pipeline(*BOTH, join(same_window=True)).reach_ms == 60_000 + 1
    assert pipeline(BOTH[0], slower, join(tumbling="1h")).reach_ms == 60_000 + 3_600_000 + 3_600_000
    assert pipeline(*BOTH, join(within={"before": "2m"}, latest=True)).reach_ms == 60_000 + 120_001
    with pytest.raises(InvalidDocument, match="keeps records for only 1w"):
        pipeline(*BOTH, join(within={"before": "7d"}, latest=True))


def test_one_bucket_holds_both_sides_by_the_fields_that_all_share() -> None:
    (branch,) = plan_branches(pipeline(*BOTH, join(same_window=True)).stages)
    assert (branch.bucket_by, branch.firsts, branch.stages) == (["machine"], [0, 1], [0, 1, 2])
    told = pipeline_graph(pipeline(*BOTH, join(same_window=True)))
    (met,) = [one for one in told["stages"] if one["join"]]
    assert (met["from"], met["join"]["left_streams"], met["windows"]) == ("a, b", [], "joined in the same window, 1m")


@pytest.mark.guarantee("G592")
def test_sliding_windows_and_days_of_a_zone_meet_in_their_own_windows() -> None:
    """Each joined row has the window of both."""
    for shape in (
        {"sliding": {"size": "2m", "every": "1m"}},
        {"cumulative": {"size": "2m", "step": "1m"}},
        {"tumbling": "1d", "tz": "Europe/Berlin"},
        {"sliding": {"size": "2d", "every": "1d"}, "tz": "Europe/Berlin"},
        {"cumulative": {"size": "1d", "step": "1h"}, "tz": "Europe/Berlin"},
        {"tumbling": "1m", "offset": "20s"},
    ):
        steps = window("a", ["machine"], shape), window("b", ["machine"], shape), join(same_window=True)
        steps[0]["emit"] = [{"elasticsearch": "alone"}]
        found = results(pipeline(*steps), [("m", 30_000, 1.0), ("m", 90_000, 2.0)])
        alone = {(one["window"]["start"], one["window"]["end"]): one["power"] for one in found["a"]}
        met = {(one["window"]["start"], one["window"]["end"]): (one["one"], one["two"]) for one in found["met"]}
        assert met == {window: (power, power) for window, power in alone.items()}, shape


def test_results_whose_keys_are_times_of_any_year_have_places_of_their_own() -> None:
    """Arrow can't write the year 32768, and takes the year 67560 for 2024."""
    micros = [0, 971_890_963_200_000_000, 1_704_067_200_000_000, 2_069_820_432_000_000_000]
    stage = pipeline(*BOTH, join(same_window=True)).stages[0]
    assert stage.identifying == ("machine",)
    times = pa.array(micros, pa.timestamp("us", "UTC"))
    edges = {name: pa.array([60_000] * 4, pa.int64()) for name in (WINDOW_START, WINDOW_END)}
    places = result_places(stage, {"machine": times, **edges}).to_pylist()
    assert len(set(places)) == 4
    assert places[0] == "a/60000/60000/1970-01-01 00:00:00.000000Z"


def results(checked: CheckedPipeline, rows: list[tuple[str, int, float]]) -> dict[str, list[dict[str, Any]]]:
    """Stage -> its documents, in their order. Each row is in a slice of its own."""
    desk = Desk(checked, 1)
    lines = [json.dumps({"machine": one, "site": "s", "ts": at, "power": power}).encode() for one, at, power in rows]
    outcomes = [*desk.feed(DeskRecords(lines, [0] * len(lines))), *desk.drain()]
    found: dict[str, list[dict[str, Any]]] = {}
    for one in outcomes:
        if isinstance(one, DeskResult):
            document = json.loads(one.document.source)
            found.setdefault(document["strandline"]["stage"], []).append(document)
    return found


@pytest.mark.guarantee("G595")
def test_a_row_meets_the_latest_that_is_not_later_and_of_equal_ones_the_last_of_the_log() -> None:
    steps = (
        {"where": "site = 's' and power < 10", "name": "a"},
        {"where": "power >= 10", "from": "plant", "name": "b"},
        join(within={"before": "1s"}, latest=True, type="left"),
    )
    rows = [
        ("m", 1_000, 10.0),
        ("m", 1_000, 11.0),
        ("m", 1_000, 1.0),
        ("m", 2_000, 2.0),
        ("m", 2_001, 3.0),
        ("m", 2_002, 12.0),
    ]
    met = results(pipeline(*steps), rows)["met"]
    assert [(one["one"], one["two"]) for one in met] == [(1.0, 11.0), (2.0, 11.0), (3.0, None)]


def test_a_change_of_what_a_side_takes_is_computed_from_the_last_result_on() -> None:
    old = pipeline(*BOTH, join(same_window=True))
    alone = window("x", [], MINUTE, "b") | {"emit": [{"elasticsearch": "x"}]}
    for steps, sentence in (
        ([*BOTH, join(within={"before": "1m"})], "how near rows are of join met"),
        ([*BOTH, join(right="a", same_window=True), alone], "window met takes"),
        (
            [*BOTH, {"where": "power > 1", "name": "c"}, join(right="c", same_window=True)],
            "the steps to the right side of join met",
        ),
    ):
        changes = changes_between(old, pipeline(*steps))
        assert any(sentence in change.change for change in changes), [change.change for change in changes]


SQL = """
create stream plant (machine string, site string, ts timestamp, power double);
create view a as select machine, max(power) as power
from table(tumble(table plant, descriptor(ts), interval '1' minute)) group by machine, window_start, window_end;
create view b as select machine, site, max(power) as power
from table(tumble(table plant, descriptor(ts), interval '1' minute)) group by machine, site, window_start, window_end;
create view met as select l.machine, l.power as one, r.power as two from a as l {join} b as r on l.machine = r.machine and {near};
create job job with (delay = '1s') as insert into elasticsearch 'met' select * from met;
"""


@pytest.mark.guarantee(
    "G597",
    "Joins of results and `latest` can be written in SQL and Python and become the same document. SQL's `for "
    "system_time as of`, which has no bound, is refused with the bounded form.",
    promise="all-forms-of-a-pipeline-agree",
)
@pytest.mark.parametrize(
    ("kind", "near", "said"),
    [
        (
            "left join",
            "l.window_start = r.window_start and l.window_end = r.window_end",
            {"same_window": True, "type": "left"},
        ),
        (
            "asof join",
            "r.window_time between l.window_time - interval '5' minute and l.window_time",
            {"within": {"before": "5m"}, "latest": True},
        ),
    ],
)
def test_sql_says_it_as_flink_and_duckdb_do(kind: str, near: str, said: dict[str, Any]) -> None:
    *_, job = translate(SQL.format(join=kind, near=near), "x.sql").documents
    (met,) = [step["join"] for step in job.data["steps"] if "join" in step]
    assert {name: value for name, value in met.items() if name not in ("name", "left", "right", "on", "add")} == said


@pytest.mark.parametrize(
    ("kind", "near", "sentence"),
    [
        ("join", "l.window_start = r.window_start", "both window_start and window_end must be equal"),
        ("asof join", "l.window_time >= r.window_time", "write the maximum difference before and after"),
        (
            "asof join",
            "r.window_time between l.window_time - interval '5' minute and l.window_time + interval '1' minute",
            "needs the maximum age of that row",
        ),
        ("join", "r.ts between l.ts - interval '5' minute and l.ts", "write window_time"),
    ],
)
def test_what_sql_can_not_say_of_it_is_refused(kind: str, near: str, sentence: str) -> None:
    with pytest.raises(InvalidDocument, match=sentence):
        translate(SQL.format(join=kind, near=near), "x.sql")


@pytest.mark.guarantee("G597")
def test_flinks_temporal_join_is_refused_with_the_form_that_bounds_it() -> None:
    text = SQL.format(join="join", near="true").replace("b as r on", "b for system_time as of l.window_time as r on")
    with pytest.raises(InvalidDocument, match="write 'asof join', and in 'on' a bound"):
        translate(text, "x.sql")


@pytest.mark.guarantee("G597")
def test_python_says_it_by_calls() -> None:
    plant = stream("plant", schema={"machine": "string", "ts": "timestamp", "power": "double"})
    rows = plant.event_time("ts", delay="1s")
    a, b = (rows.window(tumbling("1m"), name=name, by=["machine"], power="max(power)") for name in ("a", "b"))
    for near in ({"same_window": True}, {"before": "5m", "latest": True}):
        made = a.join(b, name="met", on=["machine"], one="left.power", **near).emit(elasticsearch="met").pipeline("job")
        (met,) = [step.join for step in made.spec.steps if step.join is not None]
        assert (met.left, met.right, met.same_window, met.latest) == (
            "a",
            "b",
            near.get("same_window"),
            near.get("latest"),
        )
