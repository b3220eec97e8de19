"""The pipeline model, its check against the stream, and expressions: what is accepted, and what every refusal says."""

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from scripts.part_pages import aggregate_page
from strandline.core.document_model import DocumentModel
from strandline.core.documents import read_documents
from strandline.core.errors import InvalidDocument
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.streams.entrances import HttpSpec, MqttSpec, PollSpec
from strandline.core.streams.fields import FieldSpec
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.states import EventTimeRule
from strandline.processing.aggregates.registry import BUILT_IN
from strandline.processing.kinds.derive.step import Derive
from strandline.processing.kinds.enrich.document import EnrichSpec
from strandline.processing.kinds.map_rows.document import MapSpec
from strandline.processing.kinds.where.step import Where
from strandline.processing.kinds.windows.document import WindowSpec
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.event_time import EventTimeSource
from strandline.processing.pipelines.expression_types import infer_type
from strandline.processing.pipelines.expressions import FUNCTIONS, ExpressionError, parse_expression
from strandline.processing.pipelines.model.emissions import EmitSpec
from strandline.processing.pipelines.model.inputs import EventTimeSpec, InputSpec
from strandline.processing.pipelines.model.pipeline import DeadLettersSpec, PipelineSpec, json_schema
from strandline.processing.pipelines.model.steps import StepSpec
from strandline.processing.pipelines.stages import Emit
from strandline.results.index_settings import IndexSettings
from strandline.results.sinks.elasticsearch.document import IndexSpec

STREAM = """\
stream: turbines
schema:
  turbine: string
  site: string?
  ts: timestamp
  power: double
  rated_power: double
  wind: {type: double, min: 0}
  starts: integer
  cost: decimal(10,2)
  seen: timestamp?
"""
PIPELINE = """\
pipeline: turbine-health
input: {stream: turbines}
event_time: {field: ts, delay: 10s, idle_timeout: 30s}
steps:
  - derive: {load: power / rated_power}
  - where: load < 10
  - window:
      name: per_minute
      tumbling: 1m
      by: [turbine, site]
      aggregate:
        n: count(*)
        load: avg(load)
        peak: max(load)
        cost: sum(cost)
    emit: [{elasticsearch: turbine-minute}]
  - derive: {share: cost / n}
  - window:
      name: hourly
      tumbling: 1h
      by: [turbine]
      aggregate: {n: sum(n), peak: max(peak), share: avg(share)}
    emit: [{elasticsearch: turbine-hour}, {stream: hours}]
"""
COLUMNS = {
    "s": "string",
    "i": "integer",
    "l": "long",
    "d": "double",
    "b": "boolean",
    "t": "timestamp",
    "m": "decimal(10,2)",
    "w": "decimal(38,10)",
}


def stream(text: str = STREAM) -> StreamSpec:
    return StreamSpec.parse(read_documents(text, "stream.yaml")[0])


def checked(text: str = PIPELINE, stream_text: str = STREAM) -> CheckedPipeline:
    (document,) = read_documents(text, "health.yaml")
    return check(PipelineSpec.parse(document), stream(stream_text), document)


def changed(old: str, new: str) -> str:
    assert old in PIPELINE
    return PIPELINE.replace(old, new, 1)


def problems(text: str, stream_text: str = STREAM) -> list[str]:
    with pytest.raises(InvalidDocument) as caught:
        checked(text, stream_text)
    return [str(problem) for problem in caught.value.problems]


def type_of(text: str) -> str:
    return infer_type(parse_expression(text), COLUMNS)


@pytest.mark.parametrize(
    ("event_time", "source"),
    [
        ("{from: log}", EventTimeSource(None)),
        ("{field: ts, else: log, delay: 1s}", EventTimeSource("ts", or_log=True)),
        ("{field: seen, else: log, delay: 1s}", EventTimeSource("seen", or_log=True)),
    ],
)
def test_event_time_may_be_log_time(event_time: str, source: EventTimeSource) -> None:
    pipeline = checked(changed("{field: ts, delay: 10s, idle_timeout: 30s}", event_time))
    assert pipeline.inputs[0].event_time_source == source
    stored = PipelineSpec.from_document(pipeline.spec.as_document())
    assert stored == pipeline.spec
    assert ("seen" in pipeline.inputs[0].columns_needed) is (source.field == "seen")


def test_a_checked_pipeline_tells_all_that_processing_needs() -> None:
    pipeline = checked()
    minute, hour = pipeline.stages
    assert pipeline.job == "turbine-health"
    assert pipeline.inputs[0].columns_needed == ("turbine", "site", "ts", "power", "rated_power", "cost")
    assert pipeline.inputs[0].event_time_source.field == "ts"
    assert pipeline.event_time_rule == EventTimeRule(10_000, 30_000, 300_000, "partitions")
    assert pipeline.reach_ms == 3_660_000
    assert (minute.name, minute.size_ms, minute.by, minute.by_types) == (
        "per_minute",
        60_000,
        ("turbine", "site"),
        ("string", "string"),
    )
    assert minute.aggregates == (
        ("n", "COUNT(*)", "long"),
        ("load", "AVG(`load`)", "double"),
        ("peak", "MAX(`load`)", "double"),
        ("cost", "SUM(`cost`)", "decimal(20,2)"),
    )
    assert minute.inputs[0].first_steps == (
        Derive(0, (("load", "`power` / `rated_power`", "double"),)),  # type: ignore[arg-type]
        Where(1, "`load` < 10"),
    )
    assert hour.inputs[0].steps == (
        Derive(3, (("share", "`cost` / `n`", "decimal(38,20)"),)),  # type: ignore[arg-type]
    )
    assert hour.emits == (Emit("elasticsearch", "turbine-hour"), Emit("stream", "hours"))
    assert hour.number == 4


def test_a_stage_may_emit_to_an_index_and_to_a_stream_of_one_name() -> None:
    pipeline = checked(changed("{stream: hours}", "{stream: turbine-hour}"))
    assert pipeline.stages[1].emits == (Emit("elasticsearch", "turbine-hour"), Emit("stream", "turbine-hour"))
    assert pipeline.stages[1].streams == ("turbine-hour",)


def test_an_emission_says_what_its_indices_are_like() -> None:
    settings = "replicas: 0-all, refresh_interval: 5s, lifecycle: keep-a-year"
    text = changed("elasticsearch: turbine-hour", f"elasticsearch: {{name: turbine-hour, shards: 3, {settings}}}")
    pipeline = checked(text)
    emit = pipeline.stages[1].emits[0]
    assert (emit.name, emit.index) == ("turbine-hour", IndexSettings(3, "0-all", 5_000, "keep-a-year"))
    stored = json.loads(json.dumps(pipeline.spec.as_document()))
    assert check(PipelineSpec.from_document(stored), stream()).stages[1].emits[0].index == emit.index


def test_the_short_form_of_an_emission_is_stored_as_it_was_before_there_was_a_long_one() -> None:
    for text in (changed("", ""), changed("elasticsearch: turbine-hour", "elasticsearch: {name: turbine-hour}")):
        pipeline = checked(text)
        assert pipeline.stages[1].emits[0].index == IndexSettings(1, "0-1", None, None)
        emit = pipeline.spec.as_document()["steps"][4]["emit"]  # type: ignore[index]
        assert emit == [{"elasticsearch": "turbine-hour"}, {"stream": "hours"}]


def test_a_checked_pipeline_can_be_sent_to_another_process() -> None:
    pipeline = checked()
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("idle_timeout: 30s", "max_ahead: null"),
        ("idle_timeout: 30s", "idle_timeout: null"),
        (", idle_timeout: 30s", ""),
    ],
)
def test_a_pipeline_round_trips_through_json(old: str, new: str) -> None:
    spec = checked(changed(old, new)).spec
    stored = json.loads(json.dumps(spec.as_document()))
    assert PipelineSpec.from_document(stored) == spec
    assert PipelineSpec.from_document(stored).as_document() == stored
    assert check(PipelineSpec.from_document(stored), stream()).stages == checked().stages


def test_the_same_pipeline_can_be_built_in_python() -> None:
    built = PipelineSpec.model_validate(
        {
            "pipeline": "p",
            "input": {"stream": "turbines"},
            "event_time": {"field": "ts", "delay": "10s"},
            "steps": [
                {
                    "window": {"name": "w", "tumbling": "1m", "aggregate": {"n": "count(*)"}},
                    "emit": [{"elasticsearch": "c"}],
                }
            ],
        }
    )
    pipeline = check(built, stream())
    assert pipeline.stages[0].by == ()
    assert pipeline.inputs[0].columns_needed == ("ts",)


def test_sliding_windows_become_stages_that_overlap() -> None:
    pipeline = checked(changed("tumbling: 1m\n", "sliding: {size: 1m, every: 5s}\n"))
    assert [(stage.size_ms, stage.every_ms) for stage in pipeline.stages] == [(60_000, 5_000), (3_600_000, 3_600_000)]
    stored = pipeline.spec.as_document()
    assert stored["steps"][2]["window"]["sliding"] == {"size": "1m", "every": "5s"}  # type: ignore[index]
    assert check(PipelineSpec.from_document(stored), stream()).stages == pipeline.stages


def test_a_derived_column_hides_no_stream_column_behind_the_first_window() -> None:
    """`cost` of the second window is the first one's sum, not the stream's field: the stream isn't asked for `wind`."""
    text = changed("peak: max(load)\n", "peak: max(load)\n        wind: count(*)\n").replace("sum(n)", "sum(wind)")
    assert "wind" not in checked(text).inputs[0].columns_needed


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("turbine-health", "Health", "health.yaml:1: pipeline: 'Health' is not a name"),
        ("input: {stream: turbines}", "inputs: {stream: turbines}", ":2: inputs: expected a list, got a mapping"),
        ("input: {stream: turbines}", "input: turbines", "names to values, got 'turbines'; write {stream: turbines}"),
        (
            "input: {stream: turbines}",
            "input: {files: a}",
            "input.files: files are read through a stream",
        ),
        ("input: {stream: turbines}", "input: {stream: b}", ":2: input.stream: reads 'b', not 'turbines'"),
        ("stream: turbines}", "stream: turbines, start: now}", ":2: input.start: 'now' is not a log position"),
        (
            "field: ts",
            "field: tss",
            ":3: event_time.field: 'tss' is not a field of stream 'turbines'; did you mean 'ts'?",
        ),
        ("field: ts", "field: power", ":3: event_time.field: 'power' is a double; event time needs"),
        ("field: ts", "field: seen", ":3: event_time.field: 'seen' is optional in stream 'turbines'"),
        ("delay: 10s", "delay: ten", ":3: event_time.delay: 'ten' is not a duration"),
        ("delay: 10s, ", "", ":3: event_time.delay: is missing; expected the time by which the watermark lags behind"),
        ("field: ts, ", "", ":3: event_time: expected either 'field: NAME', a timestamp field, or 'from: log'"),
        ("field: ts", "field: ts, from: log", ":3: event_time: expected either 'field: NAME'"),
        ("field: ts", "from: log, else: log", ":3: event_time.else: is for records without the field"),
        ("field: ts", "from: arrival", ":3: event_time.from: expected 'log', got 'arrival'"),
        ("delay: 10s", "dealy: 10s, delay: 1s", ":3: event_time.dealy: unknown field 'dealy'; did you mean 'delay'?"),
        ("idle_timeout: 30s", "idle_timeout: 0s", ":3: event_time.idle_timeout: expected at least 1ms, or null"),
        ("- where: load < 10", "- were: load < 10", ":6: steps[1].were: unknown field 'were'; did you mean 'where'?"),
        (
            "- where: load < 10",
            "- sort: {by: [x]}",
            ":6: steps[1].sort: results have no order in an index",
        ),
        (
            "- where: load < 10",
            "- {}",
            ":6: steps[1]: a step is exactly one of derive, where, map, select, drop, enrich, dedupe, distinct, window, join, "
            "emit, but this one has none",
        ),
        (
            "- where: load < 10",
            "- where: b\n    emit: [{elasticsearch: c}]",
            ":7: steps[1].emit: 'emit' is allowed with 'window'",
        ),
        ("where: load < 10", "where: true", ":6: steps[1].where: expected an expression as text, got True"),
        (
            "where: load < 10",
            "where:",
            ":6: steps[1]: a step is exactly one of derive, where, map, select, drop, enrich, dedupe, distinct, window, join, "
            "emit, but this one has none",
        ),
        (
            "where: load < 10",
            "where: load + 10",
            ":6: steps[1].where: expected a condition that is true or false, got a d",
        ),
        (
            "where: load < 10",
            "where: lod < 10",
            ":6: steps[1].where: unknown column 'lod' at character 1; did you mean",
        ),
        ("where: load < 10", "where: 1 < power and (lod < 10)", "unknown column 'lod' at character 16"),
        ("where: load < 10", "where: n < 10", ":6: steps[1].where: unknown column 'n' at character 1; expected one of"),
        (
            "where: load < 10",
            "where: count(*) > 1",
            ":6: steps[1].where: aggregates are only allowed in 'aggregate' of a window",
        ),
        ("load: power /", "2load: power /", ":5: steps[0].derive.2load: '2load' is not a field name"),
        ("load: power /", "window: power /", ":5: steps[0].derive.window: 'window' is reserved"),
        ("load: power / rated_power", "Power: power", ":5: steps[0].derive.Power: a column is already called 'power'"),
        ("power / rated_power", "round(power, 2)", ":5: steps[0].derive.load: has a comma inside {...}"),
        (
            "tumbling: 1m\n",
            "tumblng: 1m\n",
            ":9: steps[2].window.tumblng: unknown field 'tumblng'; did you mean 'tumbling'?",
        ),
        ("by: [turbine, site]", "by: turbine", "steps[2].window.by: expected a list, got 'turbine'; write [turbine]"),
        ("tumbling: 1m\n", "tumbling: 0s\n", ":9: steps[2].window.tumbling: a window of no length"),
        (
            "tumbling: 1m\n",
            "tumbling: 60\n",
            ":9: steps[2].window.tumbling: 60 is not a duration; write a number and a unit",
        ),
        (
            "tumbling: 1m\n",
            "tumbling: 1m\n      session: {gap: 30s}\n",
            "exactly one of: tumbling, sliding, cumulative, session",
        ),
        (
            "tumbling: 1m\n",
            "tumbling: 1m\n      offset: 60s\n",
            ":10: steps[2].window.offset: expected less than the 1m",
        ),
        ("tumbling: 1m\n", "session: {gap: 1s}\n      offset: 1s\n", "window.offset: sessions begin with a record"),
        (
            "tumbling: 1h\n",
            "tumbling: 1h\n      offset: 30s\n",
            "steps[4].window.offset: windows of 'hourly' begin inside",
        ),
        (
            "tumbling: 1m\n",
            "tumbling: 1m\n      tz: Europe/Berlin\n",
            "window.tz: a time zone determines when days begin, so it",
        ),
        (
            "tumbling: 1h\n",
            "tumbling: 1d\n      tz: Europe/Berlim\n",
            "window.tz: 'Europe/Berlim' is not a time zone; did you",
        ),
        (
            "tumbling: 1m\n",
            "cumulative: {size: 1h, step: 0s}\n",
            "window.cumulative.step: all windows would end at the same time",
        ),
        (
            "tumbling: 1m\n",
            "cumulative: {size: 1h, step: 7m}\n",
            "window.cumulative.size: 1h is not a multiple of the step",
        ),
        (
            "tumbling: 1h\n",
            "cumulative: {size: 1h, step: 30s}\n",
            "cumulative.step: 30s of window 'hourly' is not a multiple",
        ),
        ("tumbling: 1m\n", "session: {max: 1h}\n", ":9: steps[2].window.session.gap: is missing"),
        (
            "tumbling: 1m\n",
            "session: {gap: 0s}\n",
            ":9: steps[2].window.session.gap: each record would be its own session",
        ),
        (
            "tumbling: 1m\n",
            "session: {gap: 30s, max: 10s}\n",
            ":9: steps[2].window.session.max: 10s is less than the gap of 30s, but each session lasts at least that long",
        ),
        (
            "tumbling: 1h\n",
            "session: {gap: 1m}\n",
            ":20: steps[4].window.session.gap: 1m of window 'hourly' must be longer than the 1m from one window 'per_minute'",
        ),
        (
            "tumbling: 1h",
            "tumbling: 90s",
            ":20: steps[4].window.tumbling: 1m30s of window 'hourly' is not a multiple of 1m",
        ),
        ("tumbling: 1m\n", "sliding: {size: 1m, every: 0s}\n", ":9: steps[2].window.sliding.every: all windows"),
        ("tumbling: 1m\n", "sliding: {size: 1m, every: 61s}\n", ":9: steps[2].window.sliding.every: 1m1s is more than"),
        ("tumbling: 1m\n", "sliding: {size: 1m}\n", "steps[2].window.sliding.every: is missing"),
        ("tumbling: 1m\n", "sliding: {size: 1m, every: 5s}\n      tumbling: 1m\n", "exactly one of: tumbling, sliding"),
        ("      tumbling: 1m\n", "", "steps[2].window: a window has exactly one of: tumbling, sliding"),
        (
            "tumbling: 1h",
            "sliding: {size: 90s, every: 1m}",
            ":20: steps[4].window.sliding.size: 1m30s of window 'hourly' is not a multiple of 1m",
        ),
        (
            "tumbling: 1h",
            "sliding: {size: 1h, every: 30s}",
            ":20: steps[4].window.sliding.every: 30s of window 'hourly' is not a multiple of 1m",
        ),
        (
            "tumbling: 1m\n",
            "sliding: {size: 1m, every: 7s}\n",
            "1h of window 'hourly' is not a multiple of the 7s between the beginnings of window 'per_minute'",
        ),
        ("tumbling: 1h", "tumbling: 30s", "30s of window 'hourly' is not a multiple of 1m of window 'per_minute'"),
        (
            "tumbling: 1h",
            "tumbling: 7d",
            ":4: steps: the windows and the delay reach back 1w1m10s, but stream 'turbines' ",
        ),
        ("name: hourly", "name: per_minute", ":19: steps[4].window.name: a window is already called 'per_minute'"),
        ("by: [turbine, site]", "by: [turbine, sit]", ":10: steps[2].window.by[1]: unknown column 'sit'; did you mean"),
        ("by: [turbine, site]", "by: [turbine, turbine]", ":10: steps[2].window.by[1]: 'turbine' is listed twice"),
        (
            "by: [turbine, site]",
            "by: [turbine, power]",
            ":10: steps[2].window.by[1]: 'power' is a double, which makes no",
        ),
        (
            "by: [turbine]",
            "by: [load]",
            ":21: steps[4].window.by[0]: 'load' is a double, which makes no reliable key",
        ),
        (
            "n: count(*)\n",
            "turbine: count(*)\n        n: count(*)\n",
            ":12: steps[2].window.aggregate.turbine: 'turbine' is listed twice",
        ),
        ("n: count(*)\n", "N: count(*)\n        n: count(*)\n", "'N' and 'n' differ only in case"),
        ("peak: max(load)\n", "_id: max(load)\n        peak: max(load)\n", "aggregate._id: '_id' begins with '_'"),
        ("peak: max(load)\n", "strandline: max(load)\n        peak: max(load)\n", "'strandline' is reserved"),
        (
            "max(load)\n",
            "maxx(load)\n",
            ":14: steps[2].window.aggregate.peak: unknown function 'maxx' at character 1; did",
        ),
        (
            "max(load)\n",
            "load\n",
            ":14: steps[2].window.aggregate.peak: has no aggregate function; write for example max(load)",
        ),
        ("max(peak)", "max(wind)", ":22: steps[4].window.aggregate.peak: unknown column 'wind' at character 5"),
        ("max(peak)", "max(load) / rated", "'rated' at character 13 is not in an aggregate"),
        (
            "elasticsearch: turbine-hour}",
            "elasticsearch: turbine.g2}",
            ":23: steps[4].emit[0].elasticsearch: 'turbine.g2' ends like a generation of a backfill",
        ),
        (
            "elasticsearch: turbine-hour}",
            "elasticsearch: Hour}",
            ":23: steps[4].emit[0].elasticsearch: 'Hour' is not a name",
        ),
        (
            "elasticsearch: turbine-hour}",
            "elasticsearch: [h]}",
            ":23: steps[4].emit[0].elasticsearch: ['h'] is not a name",
        ),
        (
            "elasticsearch: turbine-hour}",
            "elasticsearch: {shards: 2}}",
            ":23: steps[4].emit[0].elasticsearch.name: is missing",
        ),
        (
            "elasticsearch: turbine-hour}",
            "elasticsearch: {name: h, replica: 2}}",
            ":23: steps[4].emit[0].elasticsearch.replica: unknown field 'replica'; did you mean 'replicas'?",
        ),
        (
            "elasticsearch: turbine-hour}",
            "elasticsearch: {name: turbine.g2}}",
            ":23: steps[4].emit[0].elasticsearch: 'turbine.g2' ends like a generation of a backfill",
        ),
        (
            "elasticsearch: turbine-hour}",
            "elasticsearch: h-2026.01.write}",
            ":23: steps[4].emit[0].elasticsearch: 'h-2026.01.write' ends like the alias of a monthly index",
        ),
        (
            "elasticsearch: turbine-hour}",
            "elasticsearch: {name: h, shards: 0}}",
            ":23: steps[4].emit[0].elasticsearch.shards: ",
        ),
        (
            "elasticsearch: turbine-hour}",
            "elasticsearch: {name: h, replicas: 2-1}}",
            ":23: steps[4].emit[0].elasticsearch.replicas: '2-1' is not a number of replicas; write a number from 0 to 100",
        ),
        (
            "elasticsearch: turbine-hour}",
            "elasticsearch: {name: h, refresh_interval: 1}}",
            ":23: steps[4].emit[0].elasticsearch.refresh_interval: 1 is not a duration",
        ),
        (
            "elasticsearch: turbine-hour}",
            "elasticsearch: {name: h, refresh_interval: 5ms}}",
            ":23: steps[4].emit[0].elasticsearch.refresh_interval: expected at least 100ms",
        ),
        (
            "elasticsearch: turbine-hour}",
            "elasticsearch: {name: h, lifecycle: a b}}",
            ":23: steps[4].emit[0].elasticsearch.lifecycle: 'a b' is not the name of a lifecycle policy",
        ),
        (
            "elasticsearch: turbine-hour}",
            "stream: turbines}",
            ":23: steps[4].emit[0].stream: this pipeline reads 'turbines', so it would read its own results",
        ),
        (
            "elasticsearch: turbine-hour}",
            "stream: hour.dead-letter}",
            ":23: steps[4].emit[0].stream: names that end in '.dead-letter' belong to the jobs",
        ),
        (
            "peak: max(peak), share: avg(share)}\n    emit: [{elasticsearch: turbine-hour}",
            "Window_End: max(peak)}\n    emit: [{stream: hour}",
            ":22: steps[4].window.aggregate.Window_End: 'Window_End' is the name of a window time in a stream",
        ),
        ("elasticsearch: turbine-hour}", "stream: h, elasticsearch: h}", ":23: steps[4].emit[0]: expected exactly one"),
        ("elasticsearch: turbine-hour}", "elastic: hour}", "unknown field 'elastic'; did you mean 'elasticsearch'?"),
        ("elasticsearch: turbine-hour}", "elasticsearch: turbine-minute}", "'turbine-minute' is already emitted to"),
        (
            "elasticsearch: turbine-hour}",
            "elasticsearch: h, stream: h}",
            ":23: steps[4].emit[0]: expected exactly one of",
        ),
        (
            "emit: [{elasticsearch: turbine-hour}, {stream: hours}]",
            "emit: []",
            ":23: steps[4].emit: expected at least one entry, got an",
        ),
        (
            "    emit: [{elasticsearch: turbine-hour}, {stream: hours}]\n",
            "",
            ":18: steps[4]: the last window must emit",
        ),
        (
            "{stream: hours}]\n",
            "{stream: hours}]\n  - where: n > 1\n",
            ":24: steps[5]: is after the last window",
        ),
        (
            "steps:",
            "guarantee: twice\nsteps:",
            ":4: guarantee: expected 'exactly_once', 'at_least_once' or 'none', got 'twice'",
        ),
        (
            "steps:",
            "checkpoint: {records: 0}\nsteps:",
            ":4: checkpoint.records: should be greater than or equal to 1, got 0",
        ),
        (
            "steps:",
            "dead_letters: {index: true, max_documents: 0}\nsteps:",
            ":4: dead_letters.max_documents: should be greater than or",
        ),
        (
            "steps:",
            "dead_letters: {index: true, retention: 0s}\nsteps:",
            ":4: dead_letters.retention: the index would keep nothing",
        ),
        ("hour}, {stream", "hour.dead-letters}, {stream", "ends like an index of dead letters (JOB.dead-letters)"),
        ("steps:", "on_error: ignore\nsteps:", ":4: on_error: expected 'dead_letter' or 'crash', got 'ignore'"),
        (
            "steps:",
            "late: revise\nsteps:",
            ":4: late: expected 'dead_letter' or 'drop', or {revise: ...}, got 'revise'",
        ),
        ("steps:", "allowed_lateness: 5m\nsteps:", ":4: allowed_lateness: for results that late records revise, write"),
        ("tumbling: 1h", "hopping: 1h", ".hopping: windows that overlap are 'sliding: {size: 1m, every: 10s}'"),
        (
            "elasticsearch: turbine-hour",
            "kafka: turbine-hour",
            ".kafka: a topic of results is a stream: {stream: NAME}",
        ),
        (
            "tumbling: 1h",
            "having: n > 1",
            ".window.having: a condition on results is a step after the window: 'where: COND",
        ),
        ("- window:", "- having: n > 1\n  - window:", "].having: a condition on results is a step after the window"),
        (
            "emit: [{elasticsearch: turbine-hour}, {stream: hours}]",
            "emit: updates",
            ".emit: updates of open windows are an option of a sink: write [{elasticsearch: {name: NAME, upd",
        ),
        ("load < 10", "load < 10 && load > 1", "near '&&', at character 12; write 'and'"),
        ("steps:", "placement: cluster\nsteps:", ":4: placement: expected 'own' or 'pool', got 'cluster'"),
        (
            "steps:",
            "placement: pool\nrecovery: snapshot\nsteps:",
            ":4: placement: a pool doesn't run 'recovery: snapshot'; expected 'own', or 'recovery: rewind'",
        ),
        ("steps:", "recovery: tape\nsteps:", ":4: recovery: expected 'rewind' or 'snapshot', got 'tape'"),
    ],
)
def test_what_is_wrong_in_a_pipeline_is_told_with_field_and_line(old: str, new: str, expected: str) -> None:
    found = problems(changed(old, new))
    assert [line for line in found if expected in line], "\n".join(found)
    assert all(re.match(r"health\.yaml:\d+: ", line) for line in found)


def test_an_expression_with_a_comma_in_braces_is_explained() -> None:
    found = problems(changed("{n: sum(n), peak: max(peak), share: avg(share)}", "{n: 'sum(n)', peak: least(1, 2, 3)}"))
    assert len(found) == 1
    assert found[0].endswith(
        'aggregate.peak: has a comma inside {...}, where it ends at the comma; put it in quotes: peak: "..."'
    )


def test_a_pipeline_without_a_window_is_refused() -> None:
    steps = PIPELINE.index("  - window")
    assert problems(PIPELINE[:steps]) == [
        "health.yaml:4: steps: has neither a window nor an 'emit'; expected at least one step 'window: {...}' or 'emit: [...]'"
    ]


def test_one_mistake_is_told_once_and_several_at_once() -> None:
    """A wrong derived column that two windows and a condition use is one problem. The other two are reported too."""
    text = changed("power / rated_power", "power / rated").replace("sum(cost)", "sum(coast)").replace("1h", "61s")
    assert [line.split(": ")[1] for line in problems(text)] == [
        "steps[0].derive.load",
        "steps[2].window.aggregate.cost",
        "steps[4].window.tumbling",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", "integer"),
        ("2147483648", "long"),
        ("9223372036854775808", "decimal(19,0)"),
        ("1.5", "decimal(2,1)"),
        ("0.05", "decimal(2,2)"),
        ("1.5e3", "double"),
        ("i + 1", "integer"),
        ("i * l", "long"),
        ("i / l", "double"),
        ("i div 2", "long"),
        ("l * d", "double"),
        ("l % 3", "long"),
        ("m + 1", "decimal(11,2)"),
        ("m + i", "decimal(13,2)"),
        ("m * m", "decimal(21,4)"),
        ("m / 3", "decimal(14,6)"),
        ("m * d", "double"),
        ("w * w", "decimal(38,6)"),
        ("w + m", "decimal(38,9)"),
        ("-m", "decimal(10,2)"),
        ("abs(l)", "long"),
        ("round(m, 1)", "decimal(10,1)"),
        ("round(d, 1)", "double"),
        ("floor(d)", "long"),
        ("ceil(m)", "decimal(9,0)"),
        ("sqrt(i)", "double"),
        ("pow(m, 2)", "double"),
        ("coalesce(i, l)", "long"),
        ("coalesce(null, d)", "double"),
        ("least(m, l)", "decimal(22,2)"),
        ("greatest(w, cast(1 as decimal(20,18)))", "decimal(38,10)"),
        ("nullif(i, 0)", "integer"),
        ("if(b, i, d)", "double"),
        ("case when d > 1 then 'hot' when d > 0 then 'warm' end", "string"),
        ("case i when 1 then 1 else 2.5 end", "decimal(11,1)"),
        ("upper(trim(s)) || '!'", "string"),
        ("concat(s, substring(s, 1, 2))", "string"),
        ("length(s)", "integer"),
        ("s like 'a%' and s not like '%b'", "boolean"),
        ("not b or i in (1, 2) or d between 0 and 1", "boolean"),
        ("i is not null and b is true and l <=> null", "boolean"),
        ("t > timestamp '2020-01-01'", "boolean"),
        ("cast(d as long)", "long"),
        ("try_cast(s as double)", "double"),
        ("cast(l as decimal(12, 3))", "decimal(12,3)"),
        ("cast(null as string)", "string"),
        ("count(*)", "long"),
        ("count(s)", "long"),
        ("sum(i)", "long"),
        ("sum(d)", "double"),
        ("sum(m)", "decimal(20,2)"),
        ("avg(l)", "double"),
        ("avg(m)", "decimal(14,6)"),
        ("min(s)", "string"),
        ("max(t)", "timestamp"),
        ("max(m)", "decimal(10,2)"),
        ("stddev_pop(i)", "double"),
        ("(i & l) | 1", "long"),
        ("~i", "integer"),
        ("shiftleft(i, 2)", "integer"),
        ("pmod(i, d)", "double"),
        ("sign(m)", "double"),
        ("year(t)", "integer"),
        ("unix_millis(t + interval '1' hour)", "long"),
        ("date_trunc('hour', t)", "timestamp"),
        ("s rlike '^a'", "boolean"),
        ("pi()", "double"),
        ("var_pop(m)", "double"),
        ("stddev(i) + variance(m)", "double"),
        ("first(m)", "decimal(10,2)"),
        ("last(s) || '!'", "string"),
        ("min_by(t, d)", "timestamp"),
        ("max_by(b, s)", "boolean"),
        ("count(distinct t)", "long"),
        ("approx_count_distinct(b)", "long"),
        ("percentile(i, 0.95)", "double"),
        ("median(m)", "double"),
        ("approx_percentile(l, 1)", "double"),
        ("count(*) filter (where d > 1)", "long"),
        ("sum(m) filter (where b and i > 2) / 2", "decimal(24,6)"),
        ("sum(case when b then 1 else 0 end) / count(*)", "double"),
        ("max(d) - min(d)", "double"),
    ],
)
def test_types_follow_spark(text: str, expected: str) -> None:
    assert type_of(text) == expected


@pytest.mark.guarantee(
    "G413",
    "A regular expression needs time in proportion to the text. A pattern that RE2 doesn't support, or that is too "
    "long, is refused when the document is applied.",
    promise="no-client-can-exhaust-a-service",
)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected one expression, got 0"),
        ("i; l", "expected one expression, got 2"),
        ("i +", "is not an expression of Spark SQL"),
        ("i l", "is not an expression of Spark SQL: unexpected token near 'l', at character 3"),
        ("(i", "is not an expression of Spark SQL"),
        ("'x", "is not an expression of Spark SQL"),
        ("i as n", "is not an expression of Spark SQL"),
        ("drop table x", "is not an expression of Spark SQL"),
        ("(select 1)", "an expression can't contain a query"),
        ("i in (select 1)", "an expression can't contain a query"),
        ("exists (select 1)", "an expression can't contain a query"),
        ("x.i", "unknown column 'x'"),
        ("i.x", "i is an integer, which has no members"),
        ("*", "'*' is only allowed in count(*)"),
        ("rand()", "rand() at character 1 has another value in each run"),
        ("i + rand()", "rand() at character 5 has another value"),
        ("now()", "now() at character 1 has another value"),
        ("uuid()", "has another value"),
        ("current_timestamp", "current_timestamp() has another value"),
        ("current_date()", "has another value"),
        ("first(i, true)", "FIRST(i, TRUE): expected first(x)"),
        ("1 + last((i), l)", "LAST((i), l): expected last(x)"),
        ("last(i) ignore nulls", "remove it, because aggregates always ignore nulls"),
        ("first_value(i)", "unknown function 'first_value' at character 1; did you mean 'first'?"),
        ("first(null)", "FIRST(NULL): NULL is always null"),
        ("min_by(i, null)", "NULL is always null; write a cast around it"),
        ("max_by(i)", "expected max_by(x, y)"),
        ("collect_list(i)", "expected collect_list(x, 100)"),
        ("any_value(i)", "depends on the order of records"),
        ("java_method('java.lang.System', 'exit', 1)", "unknown function 'java_method' at character 1"),
        ("reflect('java.lang.System', 'exit')", "unknown function 'reflect'"),
        ("mean(i)", "unknown function 'mean' at character 1; did you mean 'avg'?"),
        ("flor(i)", "unknown function 'flor' at character 1; did you mean 'floor'?"),
        ("Flor(i)", "unknown function 'Flor' at character 1; did you mean 'floor'?"),
        ("i + CharIndex('a', s)", "unknown function 'CharIndex' at character 5; did you mean 'instr'?"),
        ("from_unixtime(i)", "unknown function 'from_unixtime' at character 1; did you mean 'date_format'?"),
        ("to_date(s)", "unknown function 'to_date' at character 1; did you mean 'to_timestamp'?"),
        ("bool_and(b)", "unknown function 'bool_and' at character 1; did you mean 'min'?"),
        ("Random()", "Random() at character 1 has another value in each run"),
        ("s -> 'a'", "is not supported in an expression"),
        ("sum(i) over ()", "'over' is not supported"),
        ("sum(i) filter (where l)", "expected a condition after 'where', got a long"),
        ("abs(i) filter (where b)", "'filter' must follow an aggregate function"),
        ("sum(i) filter (where max(b))", "MAX(b) is inside another aggregate"),
        ("sum(i) filter (where x)", "unknown column 'x' at character 22"),
        ("count(distinct i, l)", "'distinct' is only allowed in count(distinct x), with one argument"),
        ("sum(distinct i)", "SUM(DISTINCT i): 'distinct' is only allowed in count(distinct x)"),
        ("count(distinct *)", "'distinct' is only allowed in count(distinct x)"),
        ("count(distinct null)", "NULL is always null"),
        ("approx_count_distinct(i, 0.1)", "expected approx_count_distinct(x)"),
        ("percentile(i)", "expected percentile(x, 0.95)"),
        ("percentile(i, l)", "the second argument must be written out as a number from 0 to 1"),
        ("percentile(i, 95)", "the second argument must be written out as a number from 0 to 1"),
        ("percentile(i, -0.5)", "the second argument must be written out as a number from 0 to 1"),
        ("percentile(i + (1), 0.5, 2)", "expected percentile(x, 0.95)"),
        ("percentile(s, 0.5)", "expected a number, got a string"),
        ("approx_percentile(i, 0.5, 100)", "expected approx_percentile(x, 0.95)"),
        (
            "percentile_cont(0.5) within group (order by i)",
            "'within group' is not supported; write percentile(x, 0.95)",
        ),
        ("count(i, l)", "expected count(*)"),
        ("count()", "expected count(*)"),
        ("floor (", "FLOOR() lacks an argument"),
        ("sum()", "SUM(): expected sum(x)"),
        ("sum(max(i))", "MAX(i) is inside another aggregate"),
        ("i + sum(i)", "'i' at character 1 is not in an aggregate"),
        ("'it''s'", "a doubled quote at character 5 is not supported"),
        ("i[0]", "write element_at(x, 1)"),
        ("@x", "is not supported in an expression"),
        ("interval 1 day", "is not supported in an expression"),
        ("i & l | i", "its meaning depends on precedence; add brackets"),
        ("d & i", "expected an integer or long, got a double"),
        ("year(i)", "YEAR(i): expected a timestamp, got an integer"),
        ("year()", "YEAR(): expected year(time)"),
        ("year(t, t)", "YEAR(t, t): expected year(time)"),
        ("sign(null)", "expected a number, got null"),
        ("pmod(m, 2)", "does not accept decimals; write a cast to double around a decimal(10,2)"),
        ("lpad(s, i)", "'length' must be written out, as 2"),
        ("lpad(s, 1001)", "'length' is 1001; expected an integer from 0 to 1000"),
        ("date_trunc('DAYS', t)", "'unit' is DAYS; expected one of: MICROSECOND"),
        ("date_trunc(s, t)", "'unit' must be written out, as '...'"),
        ("timestampadd('HOUR', 1, t)", "'unit' must be written out, as HOUR"),
        ("t + interval '1 2' day", "expected an interval of one unit"),
        ("interval '1' day", "is not supported in an expression"),
        ("t - t", "expected a number, got a timestamp"),
        ("extract(epoch from t)", "expected one of: YEAR, QUARTER"),
        ("HOUR", "unknown column 'HOUR' at character 1"),
        (
            "from_utc_timestamp(t, 'Europe/Berln')",
            "'zone' is 'Europe/Berln', which is not a time zone of the IANA database",
        ),
        ("from_utc_timestamp(t, '../Europe/Berlin')", "which is not a time zone of the IANA database"),
        ("from_utc_timestamp(t, '+19:00')", "an offset is at most 18 hours"),
        ("date_format(t, 'yyyy QQ')", "'pattern' has 'QQ', which is not supported"),
        ("date_format(t, 'hh:mm')", "has one of 'h' and 'a' without the other"),
        ('date_format(t, "yyyy \'T")', "has a quote that is not closed"),
        ("to_timestamp(s, 'HH:mm')", "lacks the year; expected at least year, month and day"),
        ("to_timestamp(s, 'yyyy-MM-dd EEE')", "has 'EEE', which is only for writing times"),
        ("to_timestamp(s, 'yyyy-MM-dd dd')", "has the day twice"),
        ("regexp_like(s, '(a')", "'pattern' is not a regular expression that RE2 accepts"),
        ("regexp_like(s, '(?=a)')", "is not a regular expression that RE2 accepts"),
        (r"regexp_like(s, '(a)\\1')", "is not a regular expression that RE2 accepts"),
        ("regexp_like(s, s)", "'pattern' must be written out"),
        ("regexp_like(s, '" + "a" * 1001 + "')", "'pattern' is longer than 1,000 characters"),
        ("regexp_extract(s, '(a)(?:b)', 2)", "asks for group 2 of a pattern that has 1"),
        ("regexp_replace(s, 'a', '$1')", "asks for group 1 of a pattern that has none"),
        ("regexp_replace(s, 'a', 'x$')", "has a '$' without the number of a group"),
        ("split_part(s, '', 1)", "'separator' is empty"),
        ("split_part(s, ',', 0)", "'number' is 0; parts count from 1"),
        ("convert_unit(d, 'degF', 'bar')", "converts temperature ('degF') to pressure ('bar')"),
        ("convert_unit(d, 'degf', 'degC')", "'degf' is not a unit here"),
        ("datediff(t, t)", "did you mean 'timestampdiff'?"),
        ("floor(d, 2)", "has a form that is not supported here"),
        ("null", "is always null and has no type"),
        ("coalesce(null, null)", "is always null and has no type"),
        ("s + 1", "s + 1: expected a number, got a string"),
        ("s = 1", "a string and an integer don't fit together"),
        ("t = '2020-01-01'", "a timestamp and a string don't fit together"),
        ("if(b, 1, 'x')", "an integer and a string don't fit together"),
        ("b and i", "expected a boolean, got an integer"),
        ("case when i then 1 end", "expected a boolean, got an integer"),
        ("length(i)", "expected a string, got an integer"),
        ("sum(s)", "expected a number, got a string"),
        ("d div 2", "'div' is for integers"),
        ("round(d, i)", "the number of places must be written out"),
        ("least(i)", "needs at least two arguments"),
        ("cast(s as timestamp)", "a time without a date would be read as a time of today"),
        ("cast('12:00' as timestamp)", "is not a time; expected '2026-03-29'"),
        ("cast(t as boolean)", "a timestamp can't become a boolean"),
        ("cast(i as date)", "date is not a type here"),
        ("timestamp(i)", "timestamp is not a type here"),
        ("cast(i as decimal(40,2))", "a decimal has 1 to 38 digits"),
        ("i = lo", "unknown column 'lo' at character 5; did you mean"),
        ("I + 1", "unknown column 'I' at character 1; did you mean 'i'?"),
        ("(" * 1990 + "i" + ")" * 1990, "has more than 24 brackets within each other at character 25"),
        ("i" + " + i" * 999, "is nested too deeply"),
        ("i" * 4001, "is longer than 4,000 characters"),
    ],
)
def test_what_an_expression_may_not_hold(text: str, expected: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        type_of(text)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sql", "columns"),
    [
        ("load<10 -- why", "`load` < 10", ("load",)),
        ("/* hint */ a + b*a", "`a` + `b` * `a`", ("a", "b")),
        ("`odd` + `cache`", "`odd` + `cache`", ("odd", "cache")),
        ("cache > date", "`cache` > `date`", ("cache", "date")),
        ("a - (b - c)", "`a` - (`b` - `c`)", ("a", "b", "c")),
        ('s = "it\'s"', "`s` = 'it\\'s'", ("s",)),
        ("COUNT( * )", "COUNT(*)", ()),
        ("cast(a as long)", "CAST(`a` AS BIGINT)", ("a",)),
        ("hour(a) + hour", "HOUR(`a`) + `hour`", ("hour", "a")),
        ("timestampadd(hour, hour, a)", "TIMESTAMPADD(HOUR, `hour`, `a`)", ("hour", "a")),
        ("a - interval 90 minute", "TIMESTAMPADD(MINUTE, -90, `a`)", ("a",)),
        ("extract(dow from a)", "DAYOFWEEK(`a`)", ("a",)),
        (r"a rlike r'\d+'", r"REGEXP_LIKE(`a`, '\\d+')", ("a",)),
        ("signum(a)", "SIGN(`a`)", ("a",)),
    ],
)
def test_the_text_for_spark_is_written_anew(text: str, sql: str, columns: tuple[str, ...]) -> None:
    expression = parse_expression(text)
    assert (expression.sql, expression.columns) == (sql, columns)
    assert parse_expression(sql).sql == sql


def test_a_stream_that_keeps_its_records_forever_covers_every_window() -> None:
    text = changed("tumbling: 1h", "tumbling: 520w")
    assert "keeps records for only 1w" in problems(text)[0]
    assert checked(text, STREAM + "retention: forever\n").stages[-1].size_ms == 520 * 604_800_000


def test_json_schema_describes_what_the_models_accept() -> None:
    schema: Any = json_schema()
    defs = schema["$defs"]
    assert schema["oneOf"] == [{"$ref": f"#/$defs/{name}"} for name in ("StreamSpec", "LookupSpec", "PipelineSpec")]
    for name, model in (("StreamSpec", StreamSpec), ("LookupSpec", LookupSpec), ("PipelineSpec", PipelineSpec)):
        fields = {field.alias or key for key, field in model.model_fields.items()}
        assert set(defs[name]["properties"]) == fields
        assert defs[name]["additionalProperties"] is False
        assert all(part.get("description") for part in defs[name]["properties"].values())
    short, long = defs["FieldSpec"]["anyOf"]
    assert all(re.search(short["pattern"], kind) for kind in ("double", "double?", "decimal(10, 2)"))
    assert not re.search(short["pattern"], "float")
    assert long["required"] == ["type"]
    for name, part, default in (
        ("StreamSpec", "retention", "7d"),
        ("EventTimeSpec", "max_ahead", "5m"),
        ("EventTimeSpec", "idle_timeout", "1m"),
    ):
        assert defs[name]["properties"][part]["default"] == default
    references = set(re.findall(r'"#/\$defs/(\w+)"', json.dumps(schema)))
    assert references <= set(defs)


REFERENCE = Path(__file__).parents[2] / "docs" / "pipeline.md"
CODE = Path(__file__).parents[2] / "strandline"


def test_the_examples_of_the_reference_are_right() -> None:
    stream_text, pipeline_text, *_ = re.findall(r"```yaml\n(.*?)```", REFERENCE.read_text(), re.DOTALL)
    assert [stage.name for stage in checked(pipeline_text, stream_text).stages] == ["per_minute", "hourly"]


def test_the_reference_names_every_field_and_function() -> None:
    names_of_pages = (
        "pipeline", "stream-document", "event-time", "steps", "windows", "joins", "several-streams", "emissions", "aggregates",
        "functions",
    )  # fmt: skip
    pages = [REFERENCE.with_name(f"{name}.md") for name in names_of_pages]
    pages += [path for folder in ("processing", "results") for path in (CODE / folder).rglob("page.md")]
    text = "".join([*(page.read_text() for page in pages), *map(aggregate_page, BUILT_IN)])
    models: list[type[DocumentModel]] = [
        StreamSpec, FieldSpec, HttpSpec, MqttSpec, PollSpec, PipelineSpec, EventTimeSpec, InputSpec, StepSpec, WindowSpec,
        EmitSpec, IndexSpec, DeadLettersSpec, EnrichSpec, MapSpec,
    ]  # fmt: skip
    names = {field.alias or name for model in models for name, field in model.model_fields.items()}
    assert [name for name in sorted(names | set(FUNCTIONS)) if not re.search(rf"[`{{]{name}\b", text)] == []
