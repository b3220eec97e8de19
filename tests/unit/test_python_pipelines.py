"""Pipelines in Python: they say what documents say, mistakes name the call, and nothing heavy is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import strandline
from strandline import Pipeline, cumulative, lookup, session, sliding, stream, tumbling
from strandline.core.document_model import DocumentModel
from strandline.core.documents import read_documents
from strandline.core.errors import InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.frontends.document_text import RANGE_FIELDS
from strandline.frontends.python.flow import Flow, PipelineFields, SinkOptions, StreamFields
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.results.sinks.registry import SINKS

TURBINES = stream(
    "turbines",
    schema={"turbine": "string", "ts": {"type": "timestamp", "unit": "ms"}, "power": "double", "rated_power": "double"},
    key="turbine",
)
YAML = """
pipeline: turbine-health
input: {stream: turbines, start: latest}
event_time: {field: ts, delay: 10s, idle_timeout: null, max_ahead: 5m}
steps:
  - derive: {load: power / rated_power}
  - where: load < 10
  - window: {name: per_minute, tumbling: 1m, by: [turbine], aggregate: {n: count(*), load: avg(load)}}
    emit: [{elasticsearch: turbine-minute}, {stream: minutes}]
  - window: {name: hourly, sliding: {size: 1h, every: 1m}, aggregate: {n: sum(n), name: max(load)}}
  - where: n > 3
  - drop: [name]
  - emit: [{elasticsearch: {name: turbine-hour, shards: 2}}]
late: drop
dead_letters: {index: true}
"""


def flow() -> Flow:
    return (
        TURBINES.event_time("ts", delay="10s", idle_timeout=None, max_ahead=timedelta(minutes=5))
        .derive(load="power / rated_power")
        .where("load < 10")
        .window(tumbling("1m"), name="per_minute", by=["turbine"], n="count(*)", load="avg(load)")
        .emit(elasticsearch="turbine-minute", stream="minutes")
        .window(sliding("1h", every=timedelta(minutes=1)), name="hourly", n="sum(n)", aggregate={"name": "max(load)"})
        .where("n > 3")
        .drop("name")
        .emit(elasticsearch={"name": "turbine-hour", "shards": 2})
    )


def health() -> Pipeline:
    return flow().pipeline("turbine-health", start="latest", late="drop", dead_letters={"index": True})


def test_python_and_yaml_give_the_same_canonical_document():
    (document,) = read_documents(YAML, "health.yaml")
    assert health().as_document() == PipelineSpec.parse(document).as_document()


SHORT_YAML = """
pipeline: p
input: {stream: turbines}
event_time: {field: ts, delay: 10s}
steps:
  - where: power > 1
  - window: {name: turbine_minute, tumbling: 1m, by: [turbine], aggregate: {n: count(*)}}
  - where: n > 3
  - emit: [{elasticsearch: turbine-minute}]
"""


def test_steps_may_begin_with_the_stream_and_a_window_is_called_like_its_place():
    (document,) = read_documents(SHORT_YAML, "short.yaml")
    wanted = PipelineSpec.parse(document).as_document()
    counts = (
        TURBINES.where("power > 1")
        .window(tumbling("1m"), by=["turbine"], agg={"n": "count(*)"})
        .where("n > 3")
        .emit(elasticsearch={"name": "turbine-minute"})
    )
    whole = counts.pipeline("p", event_time={"field": "ts", "delay": "10s"})
    assert whole.as_document() == counts.event_time("ts", delay="10s").pipeline("p").as_document() == wanted
    window = TURBINES.window(tumbling("1m"), agg="count(*)")
    assert window._steps[-1].document["window"]["aggregate"] == {"agg": "count(*)"}
    assert window.named("w")._steps[-1].document["window"]["name"] == "w"


def test_each_step_may_stand_behind_a_stream():
    for begun in (
        TURBINES.derive(p="power"),
        TURBINES.select("turbine"),
        TURBINES.drop("power"),
        TURBINES.dedupe(by=["turbine"], within="1h"),
        TURBINES.enrich("limits", key="turbine", add=["most"]),
        TURBINES.emit(stream="all"),
        TURBINES.union(INVERTERS).where("power > 1"),
        TURBINES.join(INVERTERS, name="j", on=["turbine"], within="1s"),
    ):
        assert isinstance(begun, Flow) and len(begun._steps) == 1


def test_an_event_time_that_nothing_says_or_two_say_is_refused_with_how_to_give_it():
    nowhere = TURBINES.where("power > 1").emit(stream="x")
    with pytest.raises(ValueError, match=r"stream 'turbines' has no event time; write \.event_time\('ts'"):
        nowhere.pipeline("p")
    with pytest.raises(ValueError, match="the event time of 'turbines' is set already"):
        nowhere.event_time("ts", delay="1s").pipeline("p", event_time={"field": "ts", "delay": "1s"})
    with pytest.raises(ValueError, match="the streams 'turbines', 'inverters' need one event time each"):
        TURBINES.union(INVERTERS).event_time("ts", delay="1s")


def test_a_window_whose_results_go_nowhere_needs_a_name():
    line = sys._getframe().f_lineno + 1
    nameless = TURBINES.event_time("ts", delay="1s").window(tumbling("1m"), n="count(*)")
    with pytest.raises(InvalidDocument, match=rf":{line}: steps\[0\]\.window\.name: is missing"):
        nameless.pipeline("p")


def test_the_yaml_of_a_pipeline_reads_back_as_the_same_documents():
    stream_document, document = read_documents(health().to_yaml(), "health.yaml")
    assert PipelineSpec.parse(document) == health().spec
    assert type(TURBINES.spec).parse(stream_document) == TURBINES.spec


def test_each_method_gives_a_new_object_and_changes_none():
    before = TURBINES.event_time("ts", delay="10s")
    one = before.where("power > 1").emit(elasticsearch="one").pipeline("one")
    two = before.where("power > 2").emit(elasticsearch="two").pipeline("two")
    assert [step.where for step in one.spec.steps] == ["power > 1", None]
    assert [step.where for step in two.spec.steps] == ["power > 2", None]
    window = before.window(tumbling("1m"), name="w", n="count(*)")
    assert window.emit(stream="a") != window and "emit" not in window._steps[-1].document


@pytest.mark.guarantee(
    "G433",
    "An error in a Python pipeline names the file and line of the call that caused it, also if a control service "
    "finds the error.",
    promise="all-forms-of-a-pipeline-agree",
)
def test_a_mistake_in_the_text_names_the_call_that_made_it():
    line = sys._getframe().f_lineno + 3
    wrong = (
        TURBINES.event_time("ts", delay="10 s")
        .window(tumbling("1 minute"), name="w", by=["turbine"], n="count(*)")
        .emit(elasticsearch="x")
    )
    with pytest.raises(InvalidDocument) as refused:
        wrong.pipeline("p")
    delay, size = refused.value.problems
    assert (delay.source, delay.line, delay.path) == (__file__, line - 1, "event_time.delay")
    assert (size.source, size.line, size.path) == (__file__, line, "steps[0].window.tumbling")
    assert "'1 minute' is not a duration" in size.message


@pytest.mark.guarantee("G433")
def test_a_mistake_against_the_stream_names_the_call_that_made_it():
    line = sys._getframe().f_lineno + 2
    wrong = TURBINES.event_time("ts", delay="10s").derive(load="power / rated_power")
    wrong = wrong.where("lod < 10")
    with pytest.raises(InvalidDocument) as refused:
        wrong.window(tumbling("1m"), name="w", n="count(*)").emit(stream="x").pipeline("p").check()
    (problem,) = refused.value.problems
    assert str(problem).startswith(f"{__file__}:{line}: steps[1].where: unknown column 'lod'")
    assert "did you mean 'load'?" in problem.message


def test_windows_say_what_a_document_says():
    """The model decides which of them it accepts."""
    forms = [
        (tumbling("1d", tz="Europe/Berlin"), {"tumbling": "1d", "tz": "Europe/Berlin"}),
        (sliding("60s", every="5s"), {"sliding": {"size": "60s", "every": "5s"}}),
        (cumulative("1d", step="1h"), {"cumulative": {"size": "1d", "step": "1h"}}),
        (session("30s", max="1h"), {"session": {"gap": "30s", "max": "1h"}}),
        (session(timedelta(seconds=90)), {"session": {"gap": "1m30s"}}),
    ]
    for windows, fields in forms:
        step = TURBINES.event_time("ts", delay="1s").window(windows, name="w", n="count(*)")._steps[-1]
        assert step.document == {"window": {"name": "w", **fields, "aggregate": {"n": "count(*)"}}}


def test_one_text_for_by_and_a_part_of_a_millisecond_are_refused_at_once():
    with pytest.raises(TypeError, match=r"write by=\['turbine'\]"):
        TURBINES.event_time("ts", delay="1s").window(tumbling("1m"), name="w", by="turbine", n="count(*)")
    with pytest.raises(TypeError, match=r"write tumbling\('1m'\)"):
        TURBINES.event_time("ts", delay="1s").window("1m", name="w", n="count(*)")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="integer milliseconds"):
        tumbling(timedelta(microseconds=1))


def test_event_time_may_be_the_time_of_arrival():
    arrival = TURBINES.event_time(from_log=True).emit(elasticsearch="x").pipeline("p")
    assert arrival.document.data["event_time"] == {"from": "log"}
    either = TURBINES.event_time("ts", delay="1s", else_log=True).emit(elasticsearch="x", name="all").pipeline("p")
    assert either.spec.event_time.else_log == "log" and either.spec.steps[0].name == "all"


INVERTERS = stream("inverters", schema={"inverter": "string", "time": "timestamp", "watts": "long"}, key="inverter")


@pytest.mark.guarantee("G540")
def test_flows_are_joined_and_united():
    """Steps are in the order of the calls, and each step that another one reads gets a name."""
    power, watts = TURBINES.event_time("ts", delay="10s"), INVERTERS.event_time("time", delay="1m", start="latest")
    large = power.where("power > 2")
    met = large.join(
        power.where("power < 1").named("small"), name="met", on=["turbine"], after="1h", kind="left", p="right.power"
    )
    both = power.union(watts.derive(power="watts / 1000e0"))
    whole = met.emit(stream="met").beside(both.window(tumbling("1m"), name="w", n="count(*)").emit(stream="w"))
    document = (
        whole.beside(met.window(tumbling("1h"), name="hours", n="count(*)").emit(stream="hours"))
        .pipeline("p")
        .document.data
    )
    assert document["inputs"] == [
        {"stream": "turbines", "event_time": {"field": "ts", "delay": "10s"}},
        {"stream": "inverters", "start": "latest", "event_time": {"field": "time", "delay": "1m"}},
    ]
    join = {
        "name": "met",
        "left": "rows",
        "right": "small",
        "on": ["turbine"],
        "within": {"after": "1h"},
        "type": "left",
    }
    window = {"tumbling": "1m", "aggregate": {"n": "count(*)"}}
    assert document["steps"] == [
        {"where": "power > 2", "from": "turbines", "name": "rows"},
        {"where": "power < 1", "from": "turbines", "name": "small"},
        {"join": {**join, "add": {"p": "right.power"}}, "emit": [{"stream": "met"}]},
        {"derive": {"power": "watts / 1000e0"}, "from": "inverters", "name": "rows_2"},
        {"window": {"name": "w", **window}, "from": ["turbines", "rows_2"], "emit": [{"stream": "w"}]},
        {"window": {"name": "hours", **window, "tumbling": "1h"}, "from": "met", "emit": [{"stream": "hours"}]},
    ]


def test_what_flows_can_not_be_together_is_refused_at_once():
    power, watts = TURBINES.event_time("ts", delay="10s"), INVERTERS.event_time("time", delay="1m")
    with pytest.raises(ValueError, match="stream 'turbines' has two event times"):
        power.union(TURBINES.event_time("ts", delay="1s"))
    with pytest.raises(ValueError, match="a join needs one step as the input of each side"):
        power.union(watts).join(power, name="j", on=["turbine"], within="1s")


def test_a_lookup_and_records_of_several_streams_at_the_desk():
    limits = lookup(
        "limits", schema={"turbine": "string", "most": "double"}, key="turbine", rows=[{"turbine": "T1", "most": 3}]
    )
    power = TURBINES.event_time("ts", delay="0s").enrich(limits, key="turbine", add=["most"], optional=True)
    watts = INVERTERS.event_time("time", delay="0s").derive(power="watts / 1000e0")
    whole = (
        power.where("power < most or most is null").union(watts).window(tumbling("1m"), name="w", power="sum(power)")
    )
    at = {"ts": "2026-11-01T12:00:00Z", "rated_power": 1}
    run = whole.emit(stream="w").pipeline("p").run([
        ("turbines", {"turbine": "T1", "power": 5, **at}),
        ("inverters", {"inverter": "I", "watts": 500, "time": at["ts"]}),
        ("turbines", {"turbine": "T1", "power": 2, **at}),
        ("turbines", {"turbine": "T2", "power": 4, **at}),
    ])  # fmt: skip
    assert [one["power"] for one in run.of("w")] == [6.5] and run.records == 4
    with pytest.raises(ValueError, match="there is no stream 'turbine' here; did you mean 'turbines'"):
        whole.emit(stream="w").pipeline("p").run([("turbine", {})])


def test_steps_of_a_further_stream_know_its_columns():
    """Also where no step takes from the first stream."""
    watts = INVERTERS.event_time("time", delay="0s").drop("inverter").where("watts > 1")
    read = TURBINES.event_time("ts", delay="0s").beside(
        watts.window(tumbling("1m"), name="w", n="count(*)").emit(stream="w")
    )
    run = read.pipeline("p").run(
        [("inverters", {"inverter": "I", "watts": n, "time": "2026-11-01T12:00:00Z"}) for n in range(4)]
    )
    assert [one["n"] for one in run.of("w")] == [2]


def test_a_run_at_the_desk_gives_documents_and_dead_letters():
    at = datetime(2026, 11, 1, 12, tzinfo=UTC)
    records = [{"turbine": "T1", "ts": at + timedelta(seconds=n), "power": 2.0, "rated_power": 4.0} for n in range(60)]
    run = health().run([*records, b'{"turbine": "T1"}', '{"turbine": 7}'])
    (minute,) = run.of("per_minute")
    assert (minute["n"], minute["load"], minute["turbine"]) == (60, 0.5, "T1")
    assert [one["reason"] for one in run.dead_letters] == ["schema", "schema"] and run.records == 62
    assert health().run(records, slice_records=7).of("hourly") == health().run(records, slice_records=7).of("hourly")
    assert len(run.of("hourly")) == 60 and "name" not in run.of("hourly")[0]


def test_a_time_without_a_zone_is_one_of_the_fields_zone_as_a_text_is():
    noon = datetime(2026, 11, 1, 12)  # noqa: DTZ001  # as many write it
    local = stream("local", schema={"ts": {"type": "timestamp", "tz": "Europe/Berlin"}}).event_time("ts", delay="0s")
    run = (
        local.emit(elasticsearch="a")
        .pipeline("p")
        .run([{"ts": at} for at in (noon, str(noon), noon.replace(tzinfo=UTC))])
    )
    assert [one["ts"] for one in run.results] == ["2026-11-01T11:00:00.000Z"] * 2 + ["2026-11-01T12:00:00.000Z"]


def test_a_pipeline_reads_the_results_of_another():
    tens = (
        TURBINES.event_time("ts", delay="10s")
        .window(tumbling("10s"), name="tens", by=["turbine"], peak="max(power)")
        .emit(stream="turbine-tens")
        .pipeline("tens")
    )
    minutes = (
        stream("turbine-tens")
        .event_time("window_start", delay="0s")
        .window(tumbling("1m"), name="minutes", by=["turbine"], peak="max(peak)")
        .emit(elasticsearch="turbine-minutes")
        .pipeline("minutes")
    )
    assert minutes.check(tens).stages[0].value_types == {"peak": "double"}
    with pytest.raises(InvalidDocument, match="there is no stream 'turbine-tens' here"):
        minutes.check()


def test_a_stream_without_its_document_is_only_a_name():
    with pytest.raises(LookupError, match="only the name of stream 'x' is known"):
        _ = stream("x").spec
    assert stream("x").yaml_documents() == []
    only = stream("x").event_time("ts", delay="1s").emit(stream="y").pipeline("p")
    assert only.check(stream("x", schema={"ts": "timestamp"})).inputs[0].name == "x"


def test_a_file_of_records_can_be_run(tmp_path: Path):
    file = tmp_path / "records.csv"
    file.write_text("turbine,ts,power,rated_power\nT1,2026-11-01 12:00:00,1,2\n")
    assert [one["load"] for one in health().run(file).of("per_minute")] == [0.5]
    with pytest.raises(TypeError, match="Path of a file"):
        health().run(str(file))


def test_files_of_several_streams_are_merged_by_time_as_on_the_command_line(tmp_path: Path):
    """One after the other, the whole second file would be late."""
    schema = {"site": "string", "ts": "timestamp"}
    east, west = (stream(name, schema=schema).event_time("ts", delay="1s") for name in ("east", "west"))
    both = (
        east.union(west)
        .window(tumbling("1m"), name="w", by=["site"], n="count(*)")
        .emit(elasticsearch="w")
        .pipeline("p")
    )
    files = {name: tmp_path / f"{name}.ndjson" for name in ("east", "west")}
    for name, file in files.items():
        lines = [json.dumps({"site": name, "ts": f"2026-11-01 12:{minute:02}:00"}) for minute in range(10)]
        file.write_text("\n".join(lines))
    run = both.run(files)
    assert (len(run.of("w")), run.dead_letters) == (20, [])
    assert len(both.run({"west": files["west"]}).of("w")) == 10
    with pytest.raises(ValueError, match="no stream 'weste' here; did you mean 'west'"):
        both.run({"weste": files["west"]})
    with pytest.raises(TypeError, match=r"pass a file for each stream: \{'east': Path\(...\), 'west': Path\(...\)\}"):
        both.run(files["east"])


def test_to_import_what_builds_pipelines_loads_nothing_that_computes():
    program = (
        "import sys; import strandline; assert not [m for m in sys.modules if m.startswith('strandline.')]; "
        "from strandline import stream, tumbling; stream('x').event_time('ts', delay='1s').emit(stream='y').pipeline('p'); "
        "print([m for m in ('pyspark', 'pandas', 'pyarrow', 'numpy', 'duckdb', 'fastapi', 'httpx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_names_and_their_types_are_the_same():
    """`__init__.pyi` says for type checkers what `__init__.py` loads when it is asked for."""
    stub = (Path(strandline.__file__).parent / "__init__.pyi").read_text()
    typed = {line.split(" as ")[1]: line.split()[1] for line in stub.splitlines() if line.startswith("from ")}
    assert typed == strandline._PUBLIC
    assert set(typed) <= set(dir(strandline))
    with pytest.raises(AttributeError, match="no attribute 'streem'"):
        _ = strandline.streem


def document_fields(model: type[DocumentModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def test_type_checkers_know_each_sink_and_each_field_of_a_document():
    """A field that is missing in these lists works, but a type checker refuses it."""
    assert list(SinkOptions.__annotations__) == list(SINKS)
    assert set(StreamFields.__annotations__) | {"stream", "schema"} == document_fields(StreamSpec)
    in_pipeline = document_fields(PipelineSpec) - {"pipeline", "input", "inputs", "steps"}
    assert set(PipelineFields.__annotations__) == in_pipeline | set(RANGE_FIELDS)
