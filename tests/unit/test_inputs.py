"""The document of a pipeline that reads several streams: its fields, its errors, its explanation and its upgrades."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import InvalidDocument
from strandline.ledger.models import RuleText
from strandline.processing.desk.case_run import read_cases, run_case
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.desk.pipeline_graph import pipeline_graph
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.upgrade import Effect, changes_between
from strandline.services.cli import commands as command_line
from strandline.services.jobs.apply_documents import check_documents

ROOT = Path(__file__).parents[2]
STREAMS = """
stream: a
schema: {k: string, ts: {type: timestamp, unit: ms}, v: double, own: "long?"}
---
stream: b
schema: {k: string, at: {type: timestamp, unit: ms}, v: long, w: double}
retention: 1h
---
"""
INPUTS = """
inputs:
  - {stream: a, event_time: {field: ts, delay: 1s}}
  - {stream: b, event_time: {field: at, delay: 2s}}
"""
WINDOW = "{name: m, tumbling: 10s, by: [k], aggregate: {n: count(*)}}"
UNITED = f"""
steps:
  - {{from: b, drop: [v], name: bb}}
  - {{from: [a, bb], window: {WINDOW}, emit: [{{elasticsearch: m}}]}}
"""


def checked(pipeline: str, inputs: str = INPUTS) -> CheckedPipeline:
    (found,) = check_documents(f"{STREAMS}pipeline: p{inputs}{pipeline}", "p.yaml", {}).pipelines
    return found


def problems(pipeline: str, inputs: str = INPUTS) -> str:
    with pytest.raises(InvalidDocument) as error:
        checked(pipeline, inputs)
    return "\n".join(f"{one.path}: {one.message}" for one in error.value.problems)


def test_a_union_has_the_fields_that_all_have() -> None:
    found = checked(UNITED)
    (stage,) = found.stages
    assert [(path.stream, len(path.steps)) for _, path in stage.record_paths] == [(0, 1), (1, 2)]
    assert dict(stage.inputs[0].columns) == {"k": "string"}
    assert [one.columns_needed for one in found.inputs] == [("k", "ts"), ("k", "at")]
    assert found.event_time_rule.of("b").delay_ms == 2_000


def test_a_window_over_the_second_stream_alone_reads_nothing_of_the_first() -> None:
    found = checked(f"\nsteps:\n  - {{from: b, window: {WINDOW}, emit: [{{elasticsearch: m}}]}}\n")
    assert [path.stream for _, path in found.stages[0].record_paths] == [1]
    assert [one.columns_needed for one in found.inputs] == [("ts",), ("k", "at")]


@pytest.mark.guarantee(
    "G454",
    "A union is refused with a remedy if its fields differ in type, if it has no field, follows a window, or uses two "
    "paths of one stream. An upgrade that adds or removes a stream is also refused. Documents with one `input` keep "
    "their form and digest.",
    promise="unusable-documents-are-refused",
)
@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (
            f"[{{window: {WINDOW}, emit: [{{elasticsearch: m}}]}}]",
            "steps[0].from: is missing; the pipeline reads several",
        ),
        (f"[{{from: [a, b], window: {WINDOW}, emit: [{{elasticsearch: m}}]}}]", "'v' is a double in a and a long in b"),
        (
            "[{from: a, select: [v], name: x}, {from: b, select: [w], name: y}, {from: [x, y], emit: [{elasticsearch: m}]}]",
            "no field is in all of x, y",
        ),
        (
            f"[{{from: a, window: {WINDOW}, emit: [{{elasticsearch: m}}]}}, {{from: [m, b], emit: [{{elasticsearch: x}}]}}]",
            "steps[1].from[0]: 'm' is after window 'm', but only records can be united",
        ),
        (
            "[{from: a, where: v > 0, name: x}, {from: [a, x], emit: [{elasticsearch: m}]}]",
            "steps[1].from[1]: 'x' has records of stream 'a'",
        ),
        ("[{from: [a, a], emit: [{elasticsearch: m}]}]", "steps[0].from[1]: 'a' is listed twice"),
        (
            "[{from: [a, c], emit: [{elasticsearch: m}]}]",
            "no step above is called 'c', and it is not one of the streams",
        ),
        ("[{from: a, emit: [{stream: b}]}]", "this pipeline reads 'b'"),
        (
            "[{from: b, emit: [{sink: {use: x, name: y}}]}]",
            "a sink of a package doesn't get a record's stream",
        ),
        (
            "[{from: a, window: {name: d, tumbling: 2h, by: [k], aggregate: {n: count(*)}}, emit: [{elasticsearch: d}]}]",
            "stream 'b' keeps records for only 1h",
        ),
    ],
)
def test_what_can_not_be_united_is_refused(steps: str, told: str) -> None:
    assert told in problems(f"\nsteps: {steps}\n")


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ("\n", "input: is missing; expected: Stream to read"),
        ("\ninput: {stream: a}\n", "event_time: is missing"),
        (f"{INPUTS}input: {{stream: a}}\n", "input: is set for each stream in 'inputs'"),
        ("\ninputs: []\n", "inputs: expected at least one entry"),
        ("\ninputs: [{stream: a}]\n", "inputs[0].event_time: is missing"),
        (INPUTS.replace("stream: b", "stream: a"), "inputs[1].stream: 'a' is already listed"),
        (INPUTS.replace("field: at", "field: v"), "inputs[1].event_time.field: 'v' is a long"),
        (
            f"{INPUTS}  - {{stream: x, event_time: {{field: at, delay: 2s}}}}\n",
            "inputs[2].stream: there is no stream 'x'",
        ),
    ],
)
def test_what_is_wrong_with_inputs_is_told_with_its_place(inputs: str, told: str) -> None:
    assert told in problems(UNITED, inputs)


EMITTER = """
pipeline: e
input: {stream: a}
event_time: {field: ts, delay: 1s}
steps: [{window: {name: w, tumbling: 1s, by: [k], aggregate: {n: count(*)}}, emit: [{stream: c}]}]
---
"""


def beside_results(event_time: str) -> str:
    inputs = f"\ninputs:\n  - {{stream: a, event_time: {{field: ts, delay: 1s}}}}\n  - {{stream: c, event_time: {event_time}}}\n"
    return f"{STREAMS}{EMITTER}pipeline: p{inputs}{UNITED.replace('from: b', 'from: c').replace('v', 'n').replace('bb', 'cc')}"


def test_results_of_another_job_beside_a_stream_go_by_its_emissions() -> None:
    text = beside_results("{field: window_end, delay: 0s}")
    found = next(one for one in check_documents(text, "p.yaml", {}).pipelines if one.job == "p")
    rule = found.event_time_rule
    assert (rule.watermark, rule.of("c").watermark, rule.of("c").idle_timeout_ms) == ("partitions", "emissions", None)
    stored = PipelineSpec.from_document(json.loads(json.dumps(found.spec.as_document())))
    assert stored.reads[1].event_time.watermark == "emissions" and stored.reads[1].event_time.idle_timeout is None
    column: Any = RuleText()
    known = rule.with_results_from({"c": 7})
    assert column.process_result_value(column.process_bind_param(known, None), None) == known
    assert (known.of("a").results_from_ms, known.of("c").results_from_ms) == (None, 7)


@pytest.mark.guarantee("G609")
@pytest.mark.parametrize(
    ("event_time", "told"),
    [
        (
            "{field: window_end, delay: 0s, watermark: newest}",
            "event_time.watermark: 'c' contains results of another job",
        ),
        ("{from: log}", "event_time: 'c' contains results of another job, which are in the order of their windows"),
    ],
)
def test_what_does_not_go_by_emissions_beside_a_stream_is_refused(event_time: str, told: str) -> None:
    with pytest.raises(InvalidDocument) as error:
        check_documents(beside_results(event_time), "p.yaml", {})
    assert told in "\n".join(f"{one.path}: {one.message}" for one in error.value.problems)


def test_only_results_have_emissions_to_go_by() -> None:
    told = problems(UNITED, INPUTS.replace("delay: 2s", "delay: 2s, watermark: emissions"))
    assert "inputs[1].event_time.watermark: no job emits results of windows to 'b'" in told


@pytest.mark.guarantee("G454")
def test_one_of_inputs_is_the_short_form() -> None:
    steps = f"steps: [{{window: {WINDOW}, emit: [{{elasticsearch: m}}]}}]\n"
    short = checked(steps, "\ninput: {stream: a}\nevent_time: {field: ts, delay: 1s}\n")
    long = checked(steps, "\ninputs: [{stream: a, event_time: {field: ts, delay: 1s}}]\n")
    assert (short.identity, short.digest, short.event_time_rule) == (long.identity, long.digest, long.event_time_rule)
    assert "inputs" not in short.spec.as_document() and not changes_between(short, long)


def test_a_stored_document_is_read_back_as_it_was() -> None:
    spec = checked(UNITED, INPUTS.replace("delay: 2s", "delay: 2s, max_ahead: null, idle_timeout: null")).spec
    stored = json.loads(json.dumps(spec.as_document()))
    again = PipelineSpec.from_document(stored)
    assert again == spec and again.as_document() == stored
    assert again.reads[1].event_time.idle_timeout is None and again.reads[0].event_time.idle_timeout == 60_000


def test_the_rule_of_each_stream_goes_through_the_ledger() -> None:
    column: Any = RuleText()
    several, one = checked(UNITED).event_time_rule, checked(UNITED).event_time_rule.of("b")
    for rule in (several, one):
        assert column.process_result_value(column.process_bind_param(rule, None), None) == rule
    assert "by_stream" not in column.process_bind_param(one, None), "as it was, of jobs that read one stream"


@pytest.mark.guarantee("G454")
@pytest.mark.parametrize(
    ("inputs", "what", "effect"),
    [
        (
            "\ninput: {stream: b}\nevent_time: {field: at, delay: 2s}\n",
            "input from streams a, b to b",
            Effect.FORBIDDEN,
        ),
        (INPUTS.replace("delay: 2s", "delay: 9s"), "delay of stream b from 2s to 9s", Effect.SAFE),
        (
            INPUTS.replace("field: at, delay: 2s", "from: log"),
            "event time of stream b from field at to log time",
            Effect.FORBIDDEN,
        ),
    ],
)
def test_an_upgrade_keeps_the_streams(inputs: str, what: str, effect: Effect) -> None:
    before = checked(f"\nsteps: [{{from: b, window: {WINDOW}, emit: [{{elasticsearch: m}}]}}]\n")
    after = checked(f"\nsteps: [{{from: b, window: {WINDOW}, emit: [{{elasticsearch: m}}]}}]\n", inputs)
    assert (what, effect) in [(one.change, one.effect) for one in changes_between(before, after)]


def test_an_upgrade_may_change_the_order_of_the_streams_and_what_is_united() -> None:
    before = checked(UNITED)
    lines = INPUTS.strip().split("\n")
    turned = checked(UNITED, "\n" + "\n".join([lines[0], lines[2], lines[1]]) + "\n")
    changes = {one.change: one.effect for one in changes_between(before, turned)}
    assert changes["the order of the streams from a, b to b, a"] is Effect.REWIND and before.digest != turned.digest
    alone = checked(f"\nsteps:\n  - {{from: a, select: [k], window: {WINDOW}}}\n".replace("select: [k], ", "") .replace(
        "}}\n", "}, emit: [{elasticsearch: m}]}\n"
    ))  # fmt: skip
    assert Effect.FORBIDDEN not in {one.effect for one in changes_between(before, alone)}
    assert changes_between(before, alone)


def test_explain_shows_each_input_and_whose_records_come_to_a_stage() -> None:
    graph = pipeline_graph(checked(UNITED))
    assert graph["inputs"][0]["stream"] == "a"
    _, second = graph["inputs"]
    assert (second["stream"], second["event_time"]["delay_ms"]) == ("b", 2_000)
    assert graph["stages"][0]["from"] == "a, b"
    assert graph["retention"] == {"needed_ms": 12_000, "of_stream_ms": 3_600_000}


def test_the_desk_merges_a_file_for_each_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.yaml").write_text(f"{STREAMS}pipeline: p{INPUTS}{UNITED}")
    for stream, field, times in (("a", "ts", (1_000, 3_000, 25_000)), ("b", "at", (2_000, 1_500, 30_000))):
        value = {"v": 1.0} if stream == "a" else {"v": 1, "w": 1.0}
        lines = [json.dumps({"k": "x", field: 1_700_000_000_000 + at, **value}) for at in times]
        (tmp_path / f"{stream}.ndjson").write_text("\n".join(lines))

    def run(*inputs: str) -> list[dict[str, Any]]:
        arguments = ["pipeline", "run", str(tmp_path / "p.yaml"), "--json"]
        for one in inputs:
            arguments += ["--input", one]
        monkeypatch.setattr("sys.argv", ["strandline", *arguments])
        with pytest.raises(SystemExit) as end:
            command_line.main()
        assert end.value.code in (0, None)
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    both = run(f"a={tmp_path / 'a.ndjson'}", f"b={tmp_path / 'b.ndjson'}")
    assert [one["n"] for one in both] == [4, 1, 1]
    assert [one["n"] for one in run(f"b={tmp_path / 'b.ndjson'}")] == [2, 1], "a stream without a file is empty"


def test_json_of_any_stream_makes_no_key() -> None:
    streams = STREAMS.replace("w: double", "w: double, free: json").replace("own:", "free: string, own:")
    text = f"{streams}pipeline: p{INPUTS}{UNITED.replace('by: [k]', 'by: [free]')}"
    with pytest.raises(InvalidDocument, match="'free' is json, and two strings of JSON can mean the same"):
        check_documents(text, "p.yaml", {})


def test_the_example_of_results_beside_a_stream_is_the_one_of_the_reference_and_right() -> None:
    text = (ROOT / "examples" / "results-beside.yaml").read_text()
    page = (ROOT / "docs" / "several-streams.md").read_text().partition("## Results of another job with streams")[2]
    assert page.partition("```yaml\n")[2].startswith(text.split("---\n", 1)[1] + "```")
    folder = ROOT / "examples" / "tests"
    (report,) = [run_case(case, folder) for case in read_cases(folder / "results-beside.yaml")]
    assert report.passed, report
    graph = pipeline_graph(read_pipeline(text.encode(), "x.yaml", "meter-jumps"))
    assert "records wait for the results that another job emits to meter-minute, however long this takes" in str(graph)
