"""Pipelines in SQL: what each form means, and why, with line and column, what can't be said is refused."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from strandline.core.documents import DOCUMENT_BYTES_MAX, read_documents
from strandline.core.errors import InvalidDocument, Problem
from strandline.core.streams.stream import StreamSpec
from strandline.frontends.sql.printer import as_sql
from strandline.frontends.sql.translation import translate
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.services.cli.document_verbs import join_files
from strandline.services.jobs.apply_documents import check_documents

STREAM = "create stream turbines (turbine string, ts timestamp, power double, rated double) with (key = 'turbine');\n"
TUMBLE = "table(tumble(table turbines, descriptor(ts), interval '1' minute))"
GROUPED = "group by turbine, window_start, window_end"


def documents(text: str) -> list[dict[str, Any]]:
    """The documents of a text, as YAML reads them."""
    return [one.data for one in read_documents(translate(text, "x.sql").yaml, "x.sql")]


def steps(query: str, *, options: str = "event_time = 'ts', delay = '10s'", before: str = "") -> list[dict[str, Any]]:
    """The steps of a job whose only insert has this query."""
    text = f"{before}\ncreate job j with ({options}) as insert into elasticsearch 'place' {query}"
    found: list[dict[str, Any]] = documents(text)[-1]["steps"]
    return found


def refusal(text: str) -> Problem:
    """The one mistake of a text."""
    with pytest.raises(InvalidDocument) as refused:
        translate(text, "x.sql")
    (problem,) = refused.value.problems
    return problem


def refusal_of(query: str) -> Problem:
    return refusal(
        f"create job j with (event_time = 'ts', delay = '10s') as insert into elasticsearch 'place'\n{query}"
    )


EMIT = [{"elasticsearch": "place"}]


def test_a_window_with_conditions_before_and_behind_it():
    query = (
        f"select turbine, window_start, window_end, count(*) as n, max(power / rated) peak from {TUMBLE} as minutes "
        f"where power > 0 {GROUPED} having count(*) > 3 and MAX(power/rated) < abs(n)"
    )
    assert steps(query) == [
        {"where": "power > 0"},
        {
            "window": {
                "name": "minutes",
                "tumbling": "1m",
                "by": ["turbine"],
                "aggregate": {"n": "count(*)", "peak": "max(power / rated)"},
            }
        },
        {"where": "n > 3 and peak < abs(n)"},
        {"emit": EMIT},
    ]


@pytest.mark.parametrize("by", ["partition by turbine", "partition by (turbine)"])
def test_sessions_are_of_the_keys_that_partition_by_names(by):
    rows = "(select * from turbines where power > 1)"
    session = f"table(session(table {rows} {by}, descriptor(ts), interval '30' second)) as busy"
    document = documents(
        f"create job j with (delay = '1s') as select turbine, count(*) as n from {session} {GROUPED} having n > 2"
    )
    window = {"name": "busy", "session": {"gap": "30s"}, "by": ["turbine"], "aggregate": {"n": "count(*)"}}
    assert document[0]["steps"][:3] == [{"where": "power > 1"}, {"window": window}, {"where": "n > 2"}]
    assert documents(as_sql(document)) == document


@pytest.mark.parametrize(
    ("relation", "groups", "sentence"),
    [
        ("turbines", "turbine, window_start", "of their results; write session(table NAME partition by (turbine), ...)"),
        ("turbines partition by (turbine, site)", "turbine, window_start", "must have the same columns"),
        ("turbines partition by turbine", "window_start", "of their results; remove it, or also group by that column"),
        ("turbines partition by turbine", "turbine, window_start", "drops rows from windows that these rows have made"),
    ],
)  # fmt: skip
def test_sessions_of_others_than_the_query_groups_by_are_refused(relation, groups, sentence):
    where = "where power > 1" if "drops rows" in sentence else ""
    session = f"session(table {relation}, descriptor(ts), interval '30' second)"
    assert sentence in refusal_of(f"select turbine, count(*) as n from {session} {where} group by {groups}").message


def test_rows_are_chosen_before_they_are_counted():
    """The third of the large ones is another row than the third of all."""
    query = (
        "select turbine, count(*) as n from table(counted(table {}, descriptor(ts), 3, interval '1' hour)) as c {} {}"
    )
    problem = refusal_of(query.format("turbines", "where power > 10", GROUPED))
    assert "from windows that these rows have made; write counted(table (select * from NAME where" in problem.message
    chosen = query.format("(select * from turbines where power > 10)", "", GROUPED)
    document = documents(f"create job j with (event_time = 'ts', delay = '1s') as {chosen}")
    assert [next(iter(step)) for step in document[0]["steps"]] == ["where", "window"]
    assert documents(as_sql(document)) == document


@pytest.mark.parametrize(
    ("aggregates", "having", "wanted"),
    [
        ("count(*) filter (where power > 5) as high, count(*) as n",
         "count(*) > 3 and COUNT(*) FILTER (WHERE power > 5) > 2", "n > 3 and high > 2"),
        ("count(*) filter (where power > 5) as high", "count(*) filter (where power > 5) > 3", "high > 3"),
        ("max(power) - min(power) as spread", "max(power) - min(power) between 1 and 2", "spread between 1 and 2"),
        ("max(power) - min(power) as spread, max(power) as hi, min(power) as lo",
         "abs(max(power) - min(power)) > 1 or max(power) - min(power) * 2 > 2 * max(power) - min(power)",
         "abs(spread) > 1 or hi - lo * 2 > 2 * hi - lo"),
    ],
)  # fmt: skip
def test_having_knows_what_is_selected_by_all_that_is_written(aggregates, having, wanted):
    """The longest expression that fits, and no part of an operand next to an operator."""
    assert steps(f"select turbine, {aggregates} from {TUMBLE} {GROUPED} having {having}")[1] == {"where": wanted}


def test_having_knows_a_column_that_is_called_like_a_constant():
    query = f"select turbine, count(*) as n, max(power > 1) as `true` from {TUMBLE} {GROUPED} having max(power > 1)"
    assert steps(query)[1]["where"] == "`true`"


@pytest.mark.parametrize(
    ("aggregate", "having"),
    [
        ("count(*) as n", "count(*) filter (where power > 5) > 3"),
        ("count(*) filter (where power > 5) as n", "count(*) > 3"),
        ("max(power) - min(power) as n", "2 * max(power) - min(power) > 3"),
        ("max(power) as n", "max(Power) > 3"),
        ("max(power) > 3 as n", "1 + max(power) > 3"),
    ],
)
def test_another_aggregate_than_the_selected_one_is_refused(aggregate, having):
    problem = refusal_of(f"select turbine, {aggregate} from {TUMBLE} {GROUPED} having {having}")
    assert "'having' can use only selected values" in problem.message


@pytest.mark.parametrize(
    ("function", "fields"),
    [
        ("tumble(table turbines, descriptor(ts), interval '1' hour)", {"tumbling": "1h"}),
        ("tumble(turbines, ts, '90s')", {"tumbling": "90s"}),
        ("tumble(data => table turbines, timecol => descriptor(ts), size => interval '1' day)", {"tumbling": "1d"}),
        (
            "hop(table turbines, descriptor(ts), interval '5' seconds, interval '1' minute)",
            {"sliding": {"size": "1m", "every": "5s"}},
        ),
        (
            "HOP(TABLE turbines, DESCRIPTOR(ts), INTERVAL '0.5' SECOND(3), INTERVAL '1 minute')",
            {"sliding": {"size": "1m", "every": "500ms"}},
        ),
        (
            "cumulate(table turbines, descriptor(ts), interval '1' hour, interval '1' day)",
            {"cumulative": {"size": "1d", "step": "1h"}},
        ),
        ("session(table turbines, descriptor(ts), interval '30' second)", {"session": {"gap": "30s"}}),
        (
            "session(table turbines, descriptor(ts), interval '30' second, interval '1' hour)",
            {"session": {"gap": "30s", "max": "1h"}},
        ),
        (
            "tumble(table turbines, descriptor(ts), interval '1' day, tz => 'Europe/Berlin')",
            {"tumbling": "1d", "tz": "Europe/Berlin"},
        ),
        (
            "hop(table turbines, descriptor(ts), interval '1' day, interval '7' days, tz => 'Europe/Berlin')",
            {"sliding": {"size": "1w", "every": "1d"}, "tz": "Europe/Berlin"},
        ),
        (
            "cumulate(table turbines, descriptor(ts), interval '1' hour, interval '1' day, tz => 'Europe/Berlin')",
            {"cumulative": {"size": "1d", "step": "1h"}, "tz": "Europe/Berlin"},
        ),
        (
            "tumble(table turbines, descriptor(ts), interval '1' day, interval '6' hour)",
            {"tumbling": "1d", "offset": "6h"},
        ),
    ],
)
@pytest.mark.parametrize("form", ["table({})", "{}"])
def test_each_windowing_function(function, fields, form):
    (step,) = steps(
        f"select window_start, count(*) as n from {form.format(function)} group by window_start, window_end"
    )
    assert step == {"window": {"name": "place", **fields, "aggregate": {"n": "count(*)"}}, "emit": EMIT}


def test_queries_without_a_window_are_steps_of_records():
    assert steps("select * from turbines") == [{"emit": EMIT}]
    assert steps("select turbine, power from turbines where power > 1") == [
        {"where": "power > 1"},
        {"select": ["turbine", "power"]},
        {"emit": EMIT},
    ]
    assert steps("select t.*, t.power / t.rated as load from turbines t") == [
        {"derive": {"load": "power / rated"}},
        {"emit": EMIT},
    ]
    assert steps("select * except (site, ts), upper(site) as place from turbines") == [
        {"derive": {"place": "upper(site)"}},
        {"drop": ["site", "ts"]},
        {"emit": EMIT},
    ]
    assert steps("select turbine as id, `power` from (select * from turbines where rated > 1) as t") == [
        {"where": "rated > 1"},
        {"derive": {"id": "turbine"}},
        {"select": ["id", "power"]},
        {"emit": EMIT},
    ]


def test_expressions_stay_as_they_were_written():
    query = """select *, case when power > 1 then 'a;b' -- why
      else "it's" end as kind, power -- kW
      /1e3 as mw from turbines where site in ('from', 'x') and `power` between 1 and 2"""
    assert steps(query)[:2] == [
        {"where": "site in ('from', 'x') and `power` between 1 and 2"},
        {"derive": {"kind": "case when power > 1 then 'a;b' else \"it's\" end", "mw": "power /1e3"}},
    ]
    numbers = "a * 5L + 1.5D / 2S - 1e3f + 7BD*(3y)"
    assert steps(f"select *, {numbers} as b, count::int as c from turbines where a > 5L and 2L < a")[:2] == [
        {"where": "a > 5L and 2L < a"},
        {"derive": {"b": numbers, "c": "count::int"}},
    ]


def test_a_member_of_a_struct_is_one_also_where_a_relation_is_called_nearly_so():
    places = "create stream places (k string, place struct<name: string>, ts timestamp);\n"
    job = "create job j with (event_time = 'ts', delay = '1s') as select k, place.name as n, places.k as k2 from places"
    assert documents(f"{places}{job}")[1]["steps"][0] == {"derive": {"n": "place.name", "k2": "k"}}
    check_documents(translate(f"{places}{job}", "x.sql").yaml, "x.yaml", {})
    with pytest.raises(InvalidDocument, match="unknown column 'plaec' at character 1; did you mean 'place'"):
        check_documents(translate(f"{places}{job.replace('place.', 'plaec.')}", "x.sql").yaml, "x.yaml", {})


def test_a_relation_with_an_alias_is_called_by_that_alone():
    """So what is called as the relation was is a struct."""
    assert steps("select turbines.name as n, t.power from turbines as t")[0] == {"derive": {"n": "turbines.name"}}
    assert (
        "no relation here has the name 'turbines'; expected one of: t"
        in refusal_of("select turbines.* from turbines t").message
    )
    window = steps(f"select max(m.power) as p, max(turbines.a) as a from {TUMBLE} m group by window_start")[0]["window"]
    assert window["aggregate"] == {"p": "max(power)", "a": "max(turbines.a)"}


def test_a_condition_may_have_the_word_from():
    query = "select power is distinct from rated as x from turbines where power is not distinct from 3 and rated > 1"
    assert steps(query)[:2] == [
        {"where": "power is not distinct from 3 and rated > 1"},
        {"derive": {"x": "power is distinct from rated"}},
    ]


def test_columns_may_be_called_like_clauses():
    assert steps("select a + offset as x, `order` from turbines where not window > 1") == [
        {"where": "not window > 1"},
        {"derive": {"x": "a + offset"}},
        {"select": ["x", "order"]},
        {"emit": EMIT},
    ]


CASCADE = f"""
create view loads as select *, power / rated as load from turbines;
create view per_minute as
select turbine, window_start, window_end, count(*) as n, max(load) as peak
from table(tumble(table loads, descriptor(ts), interval '1' minute)) {GROUPED};
create job health with (delay = interval '10' second, idle_timeout = null, start = 'latest', dead_letters.index = true) as
begin
  insert into elasticsearch 'minutes' with (shards = 2), stream 'tm' select * from per_minute;
  insert into sql 'public.hours'
  select window_start, sum(n) as n from table(tumble(table per_minute, descriptor(window_time), interval '1' hour)) as hourly
  group by window_start, window_end;
end;
"""


def test_several_inserts_of_a_job_are_a_cascade():
    assert documents(CASCADE) == [
        {
            "pipeline": "health",
            "input": {"stream": "turbines", "start": "latest"},
            "event_time": {"field": "ts", "delay": "10s", "idle_timeout": None},
            "steps": [
                {"derive": {"load": "power / rated"}},
                {
                    "window": {
                        "name": "per_minute",
                        "tumbling": "1m",
                        "by": ["turbine"],
                        "aggregate": {"n": "count(*)", "peak": "max(load)"},
                    },
                    "emit": [{"elasticsearch": {"name": "minutes", "shards": 2}}, {"stream": "tm"}],
                },
                {
                    "window": {"name": "hourly", "tumbling": "1h", "aggregate": {"n": "sum(n)"}},
                    "emit": [{"sql": {"table": "public.hours"}}],
                },
            ],
            "dead_letters": {"index": True},
        }
    ]
    pipeline = read_documents(translate(CASCADE, "x.sql").yaml, "x.sql")[0]
    stream = StreamSpec.parse(read_documents(translate(STREAM, "x.sql").yaml, "x.sql")[0])
    assert [stage.name for stage in check(PipelineSpec.parse(pipeline), stream).stages] == ["per_minute", "hourly"]


def test_the_same_cascade_with_queries_within_queries():
    nested = f"""create job health with (delay = '10s') as insert into elasticsearch 'hours'
    with loads as (select *, power / rated as load from turbines),
    per_minute as (select turbine, count(*) as n, max(load) as peak
      from table(tumble(table loads, descriptor(ts), interval '1' minute)) {GROUPED})
    select window_end, sum(n) as n
    from table(tumble(table (select * from per_minute where peak > 1), descriptor(window_time), interval '1' hour)) as hourly
    group by window_end"""
    kinds = [next(iter(step)) for step in documents(nested)[0]["steps"]]
    assert kinds == ["derive", "window", "where", "window"]


def test_records_and_windows_are_emitted_by_one_job():
    text = f"""create view loads as select * from turbines where power > 0;
    create job j with (delay = '1s') as begin
      insert into elasticsearch 'records' as readings select * from loads;
      insert into elasticsearch 'minutes' select turbine, max(power) as peak
      from table(tumble(table loads, descriptor(ts), interval '1' minute)) {GROUPED};
    end"""
    assert [list(step) for step in documents(text)[0]["steps"]] == [["where"], ["emit", "name"], ["window", "emit"]]
    assert documents(text)[0]["steps"][1] == {"emit": [{"elasticsearch": "records"}], "name": "readings"}


def test_a_stream_with_all_that_a_document_may_hold():
    text = """create stream meters (
      id varchar(20) not null, at timestamp(3) with (unit = 's', from = '$.time', min = '2020-01-01'), n int null, total bigint,
      cost decimal(10, 2) null with (min = -1.5), exact numeric(5), value double precision, rest json
    ) with (partitions = 8, key = 'id', retention = interval '2' week, 'mqtt.topics' = array['a/+', 'a/b''s'],
      mqtt.fields.id = 1, poll = array[map('url', 'http://10.0.0.5/x', 'fields', map('id', 'a.b'))]);"""
    assert documents(text) == [
        {
            "stream": "meters",
            "partitions": 8,
            "key": "id",
            "retention": "2w",
            "mqtt": {"topics": ["a/+", "a/b's"], "fields": {"id": 1}},
            "poll": [{"url": "http://10.0.0.5/x", "fields": {"id": "a.b"}}],
            "schema": {
                "id": "string",
                "at": {"type": "timestamp", "unit": "s", "from": "$.time", "min": "2020-01-01"},
                "n": "integer?",
                "total": "long",
                "cost": {"type": "decimal(10,2)", "required": False, "min": -1.5},
                "exact": "decimal(5,0)",
                "value": "double",
                "rest": "json",
            },
        }
    ]
    StreamSpec.from_document(documents(text)[0])


def test_a_job_without_an_insert_writes_to_an_index_of_its_name():
    (document,) = documents(
        f"create job minutes with (delay = '1s') as select turbine, max(power) as p from {TUMBLE} {GROUPED}"
    )
    assert document["steps"][-1]["emit"] == [{"elasticsearch": "minutes"}]


def test_event_time_may_be_the_time_of_arrival():
    query = "select count(*) as n from table(tumble(table turbines, descriptor({}), interval '1' minute)) group by window_start"
    text = f"create job j with (from = 'log') as insert into stream 'x' {query}"
    assert documents(text.format("log_time"))[0]["event_time"] == {"from": "log"}
    assert "write descriptor(log_time)" in refusal(text.format("ts")).message


@pytest.mark.parametrize(
    "relation",
    [
        "(select *, measured as ts from (select * except (ts) from s))",
        "enrich(table s, lookup => 'sites', key => 'site', add => 'ts')",
        "enrich(table s, lookup => 'sites', key => 'site', add => map('ts', 'since'))",
        "(select * from map(table s, function => 'a.b:c', reads => array['k'], columns => map('ts', 'timestamp')))",
    ],
)
def test_event_time_is_no_column_that_is_computed(relation):
    """The stream's column of that name would be taken for it."""
    view = f"create view w as select * from {relation};"
    window = "tumble(table w, descriptor({}), interval '1' minute) group by window_start"
    job = f"{view}\ncreate job j with (delay = '1s') as insert into stream 'x' select count(*) as n from {window}"
    problem = refusal(job.format("ts"))
    assert (
        "'ts' is computed before, but event time is a column of the stream, with its name in the stream"
        in problem.message
    )
    assert (problem.line, problem.column) == (2, job.format("ts").splitlines()[1].index("ts)") + 1)
    assert documents(job.format("measured"))[0]["event_time"] == {"field": "measured", "delay": "1s"}


def test_event_time_of_several_streams_that_differ_is_called_event_time():
    view = "create view w as select a, ts from x union all select a, time as ts from y;"
    window = "tumble(table w, descriptor({}), interval '1' minute) group by window_start"
    options = "'inputs.x.event_time' = 'ts', 'inputs.y.event_time' = 'time', delay = '1s'"
    job = f"{view} create job j with ({options}) as insert into stream 'n' select count(*) as n from {window}"
    assert "; if the streams have different columns, write event_time" in refusal(job.format("ts")).message
    assert [one["event_time"]["field"] for one in documents(job.format("event_time"))[0]["inputs"]] == ["ts", "time"]


@pytest.mark.guarantee(
    "G431",
    "What SQL can't express within bounds, such as a result that is never final or differs between replays, is "
    "refused with reason, line, and column. The same holds for errors that only the model, the check, or the service "
    "finds.",
    promise="all-forms-of-a-pipeline-agree",
)
@pytest.mark.parametrize(
    ("query", "place", "sentence"),
    [
        (
            "select turbine, count(*) as n from turbines group by turbine",
            (2, 54),
            "groups all rows of a stream, so a result",
        ),
        (f"select turbine, count(*) as n from {TUMBLE} group by turbine", (2, 112), "groups without the window"),
        (f"select count(*) as n from {TUMBLE}", (2, 1), "groups without the window"),
        (f"select * from {TUMBLE} {GROUPED}", (2, 8), "'*' has columns that the query doesn't group by"),
        (f"select turbine, count(*) from {TUMBLE} {GROUPED}", (2, 17), "count(*) needs a name"),
        (
            f"select turbine, power, count(*) as n from {TUMBLE} {GROUPED}",
            (2, 17),
            "'power' has many values in a window; group by it too, or select one value, as max(power) as power",
        ),
        (f"select turbine as t, count(*) as n from {TUMBLE} {GROUPED}", (2, 8), "'turbine' keeps its name in results"),
        (
            f"select count(*) as n from {TUMBLE} {GROUPED}",
            (2, 103),
            "groups by 'turbine', which identifies the result",
        ),
        (f"select turbine from {TUMBLE} {GROUPED}", (2, 1), "has no aggregate"),
        (
            f"select count(*) as n from {TUMBLE} group by upper(turbine), window_start",
            (2, 103),
            "groups by upper(turbine)",
        ),
        (f"select count(*) as n from {TUMBLE} group by 1, window_start", (2, 103), "groups by 1"),
        (
            f"select turbine, max(power) as p from {TUMBLE} {GROUPED} having count(*) > 3",
            (2, 155),
            "'having' can use only selected values",
        ),
        (
            f"select turbine, max(power) as p from {TUMBLE} where window_start > 1 {GROUPED}",
            (2, 111),
            "'window_start' can't be used in expressions",
        ),
        (
            f"select turbine, max(power) as p from {TUMBLE} {GROUPED} order by p",
            (2, 148),
            "'order by' is not supported",
        ),
        ("select * from turbines limit 10", (2, 24), "'limit' is not supported: a stream has no end"),
        (
            "select * from turbines emit changes",
            (2, 24),
            "open windows before, write the pipeline in YAML with updates",
        ),
        ("select distinct turbine from turbines", (2, 8), "'select distinct' would need every row"),
        ("select turbine, sum(power) over (order by ts) as s from turbines", (2, 28), "'over' needs earlier rows"),
        ("select * from turbines window w as (order by ts)", (2, 24), "'window' is not supported"),
        (
            "select turbine, row_number() over (partition by turbine order by ts) as n from turbines",
            (2, 30),
            "To keep the first of duplicate records",
        ),
        ("select * from turbines, sites", (2, 23), "write 'a join b on ...'"),
        ("select * from turbines emit on window close", (2, 24), "'emit' is not supported"),
        ("select * from turbines having power > 1", (2, 31), "'having' is for groups"),
        ("select power + 1 from turbines", (2, 8), "power + 1 needs a name"),
        ("select turbine.power, turbine from turbines t", (2, 8), "turbine.power needs a name"),
        ("select *, * from turbines", (2, 11), "'*' occurs twice"),
        ("select x.* from turbines as t", (2, 8), "no relation here has the name 'x'"),
        (
            "select turbine.*, power as p from turbines",
            (2, 8),
            "no relation here has the name 'turbine'; did you mean 'turbines'?",
        ),
        ("select t.* from (select * from turbines)", (2, 8), "no relation here has the name 't'"),
        (
            "select count(*) as n from cumulate(table turbines, descriptor(ts), interval '1' hour, interval '1' day) group by window_start",
            (2, 114),
            "groups all windows of cumulate(...) that begin together",
        ),
        (
            "select turbine from table(tumbel(table turbines, descriptor(ts), '1m'))",
            (2, 27),
            "'tumbel' is not a function of a relation",
        ),
        ("select turbine from table(hop(table turbines, descriptor(ts), '1m'))", (2, 27), "hop(...) lacks 'size'"),
        (
            "select turbine from table(tumble(table turbines, descriptor(ts), interval '1' month))",
            (2, 66),
            "have no fixed length",
        ),
        (
            "select turbine from table(tumble(table turbines, descriptor(ts), interval '1' day to hour))",
            (2, 66),
            "is not a known interval",
        ),
        ("select turbine", (2, 14), "expected 'from', but the text ends here"),
        ("select (((power from turbines", (2, 29), "expected 'from'"),
        ("select turbine from s.turbines", (2, 22), "names without a dot"),
        (
            f"select sum(n) as n from table(tumble(table (select turbine, count(*) as n from {TUMBLE} {GROUPED}), window_time, '1h')) "
            "as h group by window_start",
            (2, 80),
            "the window needs a name",
        ),
        (
            "with a as (select * from b), a as (select * from b) select * from a",
            (2, 30),
            "there is a query 'a' already",
        ),
        ("with recursive a as (select 1) select * from a", (2, 6), "a recursive query has no end"),
        (
            f"select sum(n) as n from table(tumble(table (select turbine, count(*) as n from {TUMBLE} as m {GROUPED}), descriptor(ts), "
            "interval '1' hour)) group by window_start",
            (2, 208),
            "write descriptor(window_time)",
        ),
    ],
)
def test_what_a_query_can_not_say_is_refused_with_its_place(query, place, sentence):
    problem = refusal_of(query)
    assert sentence in problem.message, problem
    assert (problem.line, problem.column) == place, problem


@pytest.mark.guarantee("G431")
@pytest.mark.parametrize(
    ("text", "place", "sentence"),
    [
        ("", (None, None), "contains no statement that creates a document"),
        ("-- nothing", (None, None), "contains no statement that creates a document"),
        ("create view v as select * from t", (None, None), "contains no statement that creates a document"),
        ("select * from t", (1, 1), "results need a sink"),
        ("insert into elasticsearch 'x' select * from t", (1, 1), "an insert must be in a job"),
        ("create table t (a string)", (1, 8), "write 'create stream NAME"),
        ("create or replace view v as select 1", (1, 8), "remove 'or replace'"),
        ("drop job x", (1, 1), "expected 'create stream NAME"),
        ("create stream t", (1, 15), "expected '(' and the columns"),
        ("create stream t (a string, a long)", (1, 28), "there is a column 'a' already"),
        (
            "create stream t (a string, watermark for ts as ts - interval '1' second)",
            (1, 28),
            "a watermark belongs to the job",
        ),
        ("create stream t (a string primary key)", (1, 27), "'primary' is not supported"),
        ("create stream t (a string) with (key = 'a', key = 'b')", (1, 45), "'key' occurs twice"),
        ("create stream t (a string) with (mqtt = 1, mqtt.topics = 2)", (1, 44), "'mqtt' has a value already"),
        ("create stream t (a string) with (key = a)", (1, 40), "expected a string in quotes"),
        ("create stream t (a string) nonsense", (1, 28), "expected ';', got nonsense"),
        ("create job a-b as insert into x", (1, 13), "a name with '-' must be in backticks or quotes, as 'a-...'"),
        (
            "create job j with (delay = '1s') as insert into stream 'x' select * from t",
            (1, 12),
            "with (event_time = 'COLUMN'",
        ),
        ("create job j as insert into x select 1", (1, 29), "expected a sink: one of elasticsearch"),
        ("create job j as insert into elasticsearch select 1", (1, 43), "as elasticsearch 'NAME', got select"),
        ("create job j as begin end", (1, 12), "contains no insert"),
        (
            "create job j with (steps = 1) as insert into stream 'x' select * from t",
            (1, 20),
            "follows from the statement itself",
        ),
        ("create job j as insert into stream 'x' with (a = 1) select * from t", (1, 46), "a stream has its options"),
        ("create job j as insert overwrite stream 'x' select * from t", (1, 24), "write 'insert into'"),
        ("create stream t (a string) with (key = 'a", (1, 40), "this quote is never closed"),
        ("create /* stream", (1, 8), "this comment is never closed"),
        (
            "create view a as select * from b; create view b as select * from t; create job j as insert into stream 'x' select * from a",
            (1, 32),
            "view 'b' is created after its use",
        ),
        (
            "create view a as select * from a; create job j as insert into stream 'x' select * from a",
            (1, 32),
            "is created after its use",
        ),
        ("create view a as select * from t; create view a as select * from t", (1, 47), "there is a view 'a' already"),
    ],
)
def test_what_a_statement_can_not_say_is_refused_with_its_place(text, place, sentence):
    problem = refusal(text)
    assert sentence in problem.message, problem
    assert (problem.line, problem.column) == place, problem


def test_the_first_mistake_of_each_statement_is_told():
    text = "create stream a (x);\ncreate job j as begin insert into x; end;\ncreate view v as select 1;\ncreate stream ok (x long)"
    with pytest.raises(InvalidDocument) as refused:
        translate(text, "x.sql")
    assert [(one.line, one.column) for one in refused.value.problems] == [(1, 19), (2, 35), (3, 26)]


@pytest.mark.guarantee("G431")
def test_a_mistake_that_the_model_or_the_check_finds_has_its_place_in_the_sql(tmp_path: Path):
    """Also in the second of two files, and behind an earlier document."""
    first, second = tmp_path / "a.yaml", tmp_path / "b.sql"
    first.write_text("stream: other\nschema: {x: long}\n")
    second.write_text(
        f"{STREAM}\ncreate view loads as\n  select *,\n    power / ratd as load from turbines;\n"
        f"create job j with (delay = '10 s') as insert into elasticsearch 'X'\nselect turbine, count(*) as n, max(load) as `_p` from\n"
        f" table(tumble(table loads, descriptor(ts), '1 m')) {GROUPED}"
    )
    text, name_source = join_files([first, second])
    stream, pipeline = read_documents(text, "all")[1:]
    with pytest.raises(InvalidDocument) as refused:
        PipelineSpec.parse(pipeline)
    found = [name_source(problem) for problem in refused.value.problems]
    places = {problem.path: (problem.source, problem.line, problem.column) for problem in found}
    assert places == {
        "event_time.delay": (str(second), 6, 20),
        "steps[1].window.tumbling": (str(second), 8, 2),
        "steps[1].emit[0].elasticsearch": (str(second), 6, 51),
    }
    assert str(found[0]).startswith(f"{second}:6:20: event_time.delay: '10 s' is not a duration")
    second.write_text(
        second.read_text()
        .replace("'10 s'", "'10s'")
        .replace("'1 m'", "'1m'")
        .replace("'X'", "'x'")
        .replace("`_p`", "p")
    )
    text, name_source = join_files([first, second])
    stream, pipeline = read_documents(text, "all")[1:]
    with pytest.raises(InvalidDocument) as refused:
        check(PipelineSpec.parse(pipeline), StreamSpec.parse(stream), pipeline)
    (problem,) = refused.value.problems
    shown = name_source(problem)
    assert (shown.line, shown.column, shown.path) == (5, 5, "steps[0].derive.load")
    assert "unknown column 'ratd'" in shown.message


@pytest.mark.guarantee(
    "G432",
    "A SQL text costs no more than its limits allow, whatever it contains. A long, deep, or repeated text, or a text "
    "that isn't SQL, gives an error soon.",
    promise="no-client-can-exhaust-a-service",
)
@pytest.mark.parametrize(
    "text",
    [
        "(" * 30_000,
        "create job j as insert into stream 'x' select " + "(" * 30_000,
        "create job j as insert into stream 'x' " + "select * from (" * 4_000,
        "create job j as insert into stream 'x' select " + "a+" * 60_000 + "a as b from t",
        "create job j as insert into stream 'x' select " + "case when " * 10_000,
        "create stream t (a string) with (a = " + "array[" * 10_000,
        "create stream t (a string) with (a = " + "map('a', " * 5_000,
        "create stream t (a string) with (" + "a." * 31_000 + "a = 1)",
        ";" * 60_001,
        "'" * 200_001,
        "create view v as select * from t;" * 5_000,
        "x" * (DOCUMENT_BYTES_MAX + 1),
        "\x00\x01" * 100,
        "ä" * 100_000,
    ],
    ids=lambda text: f"{text[:60]}-{len(text)}",
)
def test_hostile_texts_get_an_error_soon(text):
    began = time.process_time()
    with pytest.raises(InvalidDocument):
        translate(text, "x.sql")
    assert time.process_time() - began < 10


@pytest.mark.guarantee("G432")
def test_many_views_below_many_jobs_are_bounded():
    views = "create view v0 as select * from t where a;" + "".join(
        f"create view v{n} as select * from v{n - 1} where a;" for n in range(1, 1_500)
    )
    jobs = "".join(f"create job j{n} as insert into stream 'x{n}' select * from v1499;" for n in range(400))
    assert len(views + jobs) < DOCUMENT_BYTES_MAX
    with pytest.raises(InvalidDocument, match="makes more than 20,000 steps"):
        translate(views + jobs, "x.sql")


def test_a_name_of_any_kind_is_printed_and_read_back():
    for name in ("order", "from", "table", "Case", "x1", "_x", "window_startx", "interval"):
        data = [
            {"stream": "a-b.c", "schema": {name: "string", "ts": {"type": "timestamp", "from": "$['it''s']\\n"}}},
            {
                "pipeline": "select",
                "input": {"stream": "a-b.c"},
                "event_time": {"field": "ts", "delay": "1s"},
                "steps": [
                    {"select": [name, "ts"]},
                    {"window": {"name": name, "tumbling": "1m", "by": [name], "aggregate": {"n": "count(*)"}}},
                    {"where": "n > 1"},
                    {"emit": [{"sink": {"use": "x", "name": "it's\n\\", "options": {"a": 1.5, "b": True}}}]},
                ],
            },
        ]
        assert documents(as_sql(data)) == data, as_sql(data)


def test_a_step_without_a_clause_is_a_function_of_a_relation():
    enriched = "table(enrich(table turbines, lookup => 'sites', key => map('id', 'site'), add => array['rated'], optional => true)) t"
    wanted = {"enrich": {"lookup": "sites", "key": {"id": "site"}, "add": ["rated"], "optional": True}}
    assert steps(f"select *, t.power / rated as load from {enriched} where t.rated > 1")[:3] == [
        wanted,
        {"where": "rated > 1"},
        {"derive": {"load": "power / rated"}},
    ]
    data = documents(f"create job j with (event_time = 'ts', delay = '1s') as select * from {enriched} where rated > 1")
    assert documents(as_sql(data)) == data
    with pytest.raises(InvalidDocument, match=r"x\.sql:1:98: 'key' occurs twice"):
        translate(
            "create job j with (event_time = 'ts', delay = '1s') as select * from enrich(table t, key => 'a', key => 'b')",
            "x.sql",
        )


def test_a_lookup_is_columns_and_options():
    text = """create lookup sites (id string, rated double null)
    with (key = 'id', rows = array[map('id', 'a', 'rated', 1.5), map('id', 'b')]);"""
    wanted = {
        "lookup": "sites",
        "key": "id",
        "rows": [{"id": "a", "rated": 1.5}, {"id": "b"}],
        "schema": {"id": "string", "rated": "double?"},
    }
    assert documents(text) == [wanted] == documents(as_sql([wanted]))


def test_a_lookup_follows_what_its_options_name():
    text = """create lookup devices (device string, owner string null)
    with (key = 'device', source.stream = 'registry', source.deleted_if = 'gone', source.every = '30s');"""
    wanted = {
        "lookup": "devices",
        "key": "device",
        "source": {"stream": "registry", "deleted_if": "gone", "every": "30s"},
        "schema": {"device": "string", "owner": "string?"},
    }
    assert documents(text) == [wanted] == documents(as_sql([wanted]))


def test_words_of_aggregates_end_no_expression():
    query = f"select turbine, percentile_cont(0.5) within group (order by power) as p, sum(power) filter (where rated > 1) s from {TUMBLE} {GROUPED}"
    assert steps(query)[0]["window"]["aggregate"] == {
        "p": "percentile_cont(0.5) within group (order by power)",
        "s": "sum(power) filter (where rated > 1)",
    }


@pytest.mark.parametrize(
    "query",
    ["select *, window_end as at from w", "select * from w where window_end > 1", "select window_end at from w"],
)
def test_the_times_of_a_window_are_no_columns(query):
    view = f"create view w as select turbine, count(*) as n from {TUMBLE} {GROUPED};\n"
    problem = refusal(f"{view}create job j with (delay = '1s') as {query}")
    assert "'window_end' can't be used in expressions" in problem.message and problem.line == 2
