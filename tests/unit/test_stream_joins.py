"""Joins whose sides come from several streams: what their document says, what is refused, how they are explained and upgraded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strandline.core.documents import read_documents
from strandline.core.errors import InvalidDocument
from strandline.frontends.sql.translation import translate
from strandline.processing.desk.case_run import read_cases, run_case
from strandline.processing.desk.desk import Desk, DeskResult, LocalDeadLetter, Outcome
from strandline.processing.desk.pipeline_graph import pipeline_graph
from strandline.processing.desk.records import DeskRecords
from strandline.processing.kinds.enrich.step import Enrich
from strandline.processing.kinds.join.step import JoinStage
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.graph.branches import plan_branches
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.stages import LEFT, RIGHT
from strandline.processing.pipelines.upgrade import Effect, changes_between
from strandline.results.document import document_id
from strandline.services.cli.desk.desk_display import graph_tables
from strandline.services.jobs.apply_documents import check_documents

EXAMPLES = Path(__file__).parents[2] / "examples"
STREAMS = """
stream: orders
schema: {id: string, placed: {type: timestamp, unit: ms}, amount: double, note: json, shop: "string?"}
retention: 1d
---
stream: parcels
schema: {parcel: long, id: "string?", at: {type: timestamp, unit: ms}, carrier: string}
retention: 3h
---
stream: returns
schema: {id: string, at: {type: timestamp, unit: ms}, amount: double}
---
"""
INPUTS = """
inputs:
  - {stream: orders, event_time: {field: placed, delay: 1s, max_ahead: null}}
  - {stream: parcels, event_time: {field: at, delay: 2s, max_ahead: null, idle_timeout: null}}
"""
ADD = "{a: left.amount, c: right.carrier}"
JOIN = f"{{name: met, left: orders, right: parcels, on: [id], within: {{after: 10s}}, type: left, add: {ADD}}}"
STEPS = f"\nsteps:\n  - {{join: {JOIN}, emit: [{{elasticsearch: met}}]}}\n"


def checked(steps: str = STEPS, inputs: str = INPUTS) -> CheckedPipeline:
    (found,) = check_documents(f"{STREAMS}pipeline: p{inputs}{steps}", "p.yaml", {}).pipelines
    return found


def join_of(pipeline: CheckedPipeline) -> JoinStage:
    (stage,) = pipeline.stages
    assert isinstance(stage, JoinStage)
    return stage


def test_each_side_has_the_fields_of_its_own_stream() -> None:
    found = checked()
    stage = join_of(found)
    assert [(path.stream, side, path.steps) for side, path in stage.record_paths] == [(0, LEFT, ()), (1, RIGHT, ())]
    assert stage.field_types == {"id": "string", "a": "double", "c": "string"}
    assert [one.columns_needed for one in found.inputs] == [("id", "placed", "amount"), ("id", "at", "carrier")]


def test_a_side_may_be_a_union_and_a_stream_on_both_sides() -> None:
    both = STEPS.replace("- {join", "- {from: [orders, returns], where: amount > 0, name: all}\n  - {join").replace(
        "left: orders, right: parcels", "left: all, right: returns"
    )
    stage = join_of(checked(both.replace("right.carrier", "right.at"), INPUTS.replace("parcels", "returns")))
    assert [(path.stream, side, len(path.steps)) for side, path in stage.record_paths] == [
        (0, LEFT, 2),
        (1, LEFT, 2),
        (1, RIGHT, 0),
    ]


@pytest.mark.guarantee(
    "G513",
    "Two streams that don't fit, by a missing field, keys of two types, or a retention shorter than the join's reach, "
    "are refused with side and stream. `explain` shows the rows of each side and the retention of each stream.",
    promise="unusable-documents-are-refused",
)
@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("on: [id]", "on: [shop]", "join.on[0]: the right side has no column 'shop'"),
        ("on: [id]", "on: [note]", "join.on[0]: the right side has no column 'note'"),
        ("right.carrier", "right.amount", "join.add.c: the right side has no column 'amount'"),
        ("left.amount", "left.carrier", "join.add.a: the left side has no column 'carrier'"),
        ("right: parcels", "right: returns", "no step above is called 'returns', and it is not one of the streams"),
        (
            "- {join",
            "- {from: parcels, select: [parcel, at, carrier]}\n  - {derive: {id: parcel}, name: named}\n  - {join",
            "join.on[0]: 'id' is a string on the left and a long on the right",
        ),
        ("{after: 10s}", "{after: 90m}", "reach back 3h2s1ms, but stream 'parcels' keeps records for only 3h"),
    ],
)
def test_what_does_not_fit_is_told_with_its_side(old: str, new: str, told: str) -> None:
    text = STEPS.replace(old, new)
    if "named" in new:
        text = text.replace("right: parcels", "right: named")
    with pytest.raises(InvalidDocument) as raised:
        checked(text)
    assert told in str(raised.value)


@pytest.mark.guarantee("G513")
def test_json_of_either_stream_makes_no_key() -> None:
    named = "- {from: parcels, derive: {note: carrier}, name: named}\n  - {join"
    text = STEPS.replace("- {join", named).replace("right: parcels", "right: named").replace("on: [id]", "on: [note]")
    for turned in (text, text.replace("left: orders, right: named", "left: named, right: orders")):
        with pytest.raises(InvalidDocument, match=r"join.on\[0\]: 'note' is json"):
            checked(turned.replace(ADD, "{}"))


@pytest.mark.guarantee("G513")
def test_explain_tells_streams_and_their_retention() -> None:
    graph = pipeline_graph(checked())
    (stage,) = graph["stages"]
    assert (stage["join"]["left_streams"], stage["join"]["right_streams"]) == (["orders"], ["parcels"])
    assert (stage["join"]["left_is_held_ms"], stage["join"]["right_is_held_ms"]) == (12_000, 2_000)
    assert [read["retention_ms"] for read in graph["inputs"]] == [86_400_000, 10_800_000]
    facts = graph_tables(graph)[0]
    shown = [cell for column in getattr(facts, "columns", []) for cell in column.cells]
    assert "needs 22s1ms; orders has 1d, parcels has 3h" in map(str, shown)


def test_an_upgrade_may_turn_streams_and_sides() -> None:
    old = checked()
    lines = INPUTS.strip().split("\n")
    turned = checked(STEPS, "\n" + "\n".join([lines[0], lines[2], lines[1]]) + "\n")
    changes = {one.change: one.effect for one in changes_between(old, turned)}
    assert changes == {"the order of the streams from orders, parcels to parcels, orders": Effect.REWIND}
    assert old.digest != turned.digest
    sides = STEPS.replace("left: orders, right: parcels", "left: parcels, right: orders")
    sides = sides.replace("left.amount", "right.amount").replace("right.carrier", "left.carrier")
    changes = {one.change: one.effect for one in changes_between(old, checked(sides))}
    assert changes["the streams of join met"] is Effect.REWIND
    assert Effect.FORBIDDEN not in changes.values()


def outcomes(pipeline: CheckedPipeline, rows: list[tuple[str, dict[str, Any]]]) -> list[Outcome]:
    desk, found = Desk(pipeline, 1), list[Outcome]()
    for stream, record in rows:
        found += desk.feed(DeskRecords([json.dumps(record).encode()], [0], stream=stream))
    return [*found, *desk.drain()]


def order(name: str, at_ms: int) -> tuple[str, dict[str, Any]]:
    return "orders", {"id": name, "placed": at_ms, "amount": 1.0}


def parcel(name: str | None, at_ms: int) -> tuple[str, dict[str, Any]]:
    return "parcels", {"parcel": 1, "id": name, "at": at_ms, "carrier": "c"}


@pytest.mark.guarantee(
    "G512",
    "A row of the stream that is ahead waits for the other stream, unless that stream is silent for its "
    "`idle_timeout`. The id of a joined row names the streams of both rows.",
    promise="operators-compute-what-the-reference-describes",
)
def test_a_row_waits_for_the_stream_that_is_behind_and_its_id_names_both() -> None:
    rows = [parcel(None, 0), order("a", 1_000), order("b", 1_000), order("z", 90_000), parcel("a", 11_000)]
    found = outcomes(checked(), rows)
    results = [one for one in found if isinstance(one, DeskResult)]
    assert not [one for one in found if isinstance(one, LocalDeadLetter)], "nothing was late"
    shown = [json.loads(one.document.source) for one in results]
    assert [(one["id"], one["c"], one["strandline"]["emission"]) for one in shown] == [
        ("a", "c", 6),
        ("b", None, 6),
        ("z", None, 6),
    ], "the drain, since parcels have come to 9 s"
    pair = document_id("p", "met", 1_000, 11_001, ("a", "orders/0/0|parcels/0/1"))
    assert results[0].document.id == pair


@pytest.mark.guarantee("G512")
def test_where_a_stream_is_silent_for_its_timeout_the_other_waits_no_longer() -> None:
    impatient = checked(STEPS, INPUTS.replace(", idle_timeout: null", ", idle_timeout: 30s"))
    rows = [parcel(None, 0), order("a", 1_000), order("z", 90_000), parcel("a", 11_000)]
    found = outcomes(impatient, rows)
    assert [one.reason for one in found if isinstance(one, LocalDeadLetter)] == ["late"]
    assert outcomes(checked(), rows) != found


def test_what_each_way_needs_is_known_whichever_side_it_leads_to() -> None:
    lookup = "lookup: shops\nkey: id\nschema: {id: string, town: string}\nrows: []\n---\n"
    enrich = "{lookup: shops, key: {id: carrier}, add: [town], optional: true}"
    enriched = f"- {{from: parcels, enrich: {enrich}, name: towns}}\n  - {{join"
    text = (
        STEPS.replace("- {join", enriched)
        .replace("right: parcels", "right: towns")
        .replace("right.c", "right.town, d: right.c")
    )
    (found,) = check_documents(f"{lookup}{STREAMS}pipeline: p{INPUTS}{text}", "p.yaml", {}).pipelines
    assert any(isinstance(step, Enrich) for step in join_of(found).steps_before)
    window = "{name: m, tumbling: 10s, by: [id], aggregate: {n: count(*)}}"
    step = f"{{from: [orders, towns], window: {window}, emit: [{{elasticsearch: m}}]}}"
    united = f"\nsteps:\n  {enriched.removesuffix('{join')}{step}\n"
    (found,) = check_documents(f"{lookup}{STREAMS}pipeline: p{INPUTS}{united}", "p.yaml", {}).pipelines
    assert any(isinstance(step, Enrich) for step in found.stages[0].steps_before), "of a union, too"


ONCE = "- {from: parcels, dedupe: {by: [parcel, id], within: 1m}, name: once}\n  - {join"


@pytest.mark.guarantee("G514")
def test_repeats_are_left_out_of_one_side() -> None:
    deduped = STEPS.replace("- {join", ONCE).replace("right: parcels", "right: once")
    streams = STREAMS.replace("retention: 3h", "retention: 3h\nkey: parcel")
    (found,) = check_documents(f"{streams}pipeline: p{INPUTS}{deduped}", "p.yaml", {}).pipelines
    assert join_of(found).deduped_sides == [RIGHT]
    assert found.reach_ms == checked().reach_ms + 60_000, "its horizon adds to the reach"
    rows = [parcel("a", 2_000), order("a", 1_000), parcel("a", 2_500), parcel("a", 2_600), parcel("b", 2_000)]
    results = [one for one in outcomes(found, rows) if isinstance(one, DeskResult)]
    assert [json.loads(one.document.source)["id"] for one in results] == ["a"], "no repeat was joined"
    branches = pipeline_graph(found)["branches"]
    assert [(one["by"], one["buckets"] == "one") for one in branches] == [(["id"], False)]
    alone = deduped.replace("by: [parcel, id]", "by: [parcel]")
    (found,) = check_documents(f"{streams}pipeline: p{INPUTS}{alone}", "p.yaml", {}).pipelines
    assert [one["buckets"] for one in pipeline_graph(found)["branches"]] == ["one"], "repeats would be apart"


def test_a_dedupe_stands_before_a_union() -> None:
    united = "- {from: [orders, parcels], dedupe: {by: [id], within: 1m}, name: once}\n  - {join"
    text = STEPS.replace("- {join", united).replace("left: orders", "left: once").replace("left.amount", "left.id")
    with pytest.raises(
        InvalidDocument,
        match="is after the union of orders, parcels, but all duplicates of a record must be in one partition",
    ):
        checked(text)


def test_a_column_that_is_made_anew_behind_a_dedupe_makes_no_bucket() -> None:
    """The column isn't the one that the dedupe compares, although it has the same name."""
    steps = """
steps:
  - {from: parcels, dedupe: {by: [parcel, id], within: 1m}}
  - drop: [id]
  - derive: {id: carrier}
  - {window: {name: m, tumbling: 10s, by: [id], aggregate: {n: count(*)}}, emit: [{elasticsearch: m}]}
"""
    streams = STREAMS.replace("retention: 3h", "retention: 3h\nkey: parcel")
    (found,) = check_documents(f"{streams}pipeline: p{INPUTS}{steps}", "p.yaml", {}).pipelines
    (branch,) = plan_branches(found.stages)
    assert (branch.bucket_by, branch.split) == ([], [0]), "a whole partition is in one bucket"


def test_a_window_over_the_second_stream_behind_its_own_fields() -> None:
    window = "{name: m, tumbling: 10s, by: [id], aggregate: {n: count(*)}}"
    steps = (
        f"\nsteps:\n  - {{from: parcels, where: parcel > 0}}\n  - {{window: {window}, emit: [{{elasticsearch: m}}]}}\n"
    )
    assert len(outcomes(checked(steps), [parcel("a", 1_000), parcel("a", 2_000)])) == 1


def test_sql_says_such_a_join() -> None:
    text = """
create stream a (id string, ts timestamp);
create stream b (id string, ts timestamp);
create view met as select * from table(join(table a, table b, name => 'met', on => array['id'], within => '10s'));
create job j with (event_time = 'ts', delay = '1s') as insert into elasticsearch 'met' select * from met;
"""
    *_, job = read_documents(translate(text, "x.sql").yaml, "x.sql")
    assert [read.stream for read in PipelineSpec.parse(job).reads] == ["a", "b"]


def test_the_test_of_the_example_passes() -> None:
    (report,) = [run_case(case, EXAMPLES / "tests") for case in read_cases(EXAMPLES / "tests/stream-joins.yaml")]
    assert report.passed, report
