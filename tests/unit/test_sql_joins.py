"""Joins, unions and several streams in SQL: what each becomes, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strandline.core.errors import InvalidDocument, Problem
from strandline.frontends.sql.printer import as_sql
from strandline.frontends.sql.translation import translate
from strandline.processing.desk.desk import Desk, DeskResult
from strandline.processing.desk.records import DeskRecords
from strandline.services.jobs.apply_documents import check_documents

ON = "o.id = s.id and s.ts between o.ts - interval '5' minute and o.ts + interval '1' hour"
SAME = "o.id = s.id and o.window_start = s.window_start and o.window_end = s.window_end"


def document(text: str) -> dict[str, Any]:
    (found,) = [one.data for one in translate(text, "x.sql").documents]
    return found


def joined(query: str) -> dict[str, Any]:
    """The document of a job over the rows of a view `met`."""
    return document(
        f"create view met as {query};\ncreate job j with (delay = '1s') as insert into stream 'x' select * from met"
    )


def join_of(query: str) -> dict[str, Any]:
    (step,) = [step["join"] for step in joined(query)["steps"] if "join" in step]
    return step


def refusal(query: str) -> Problem:
    with pytest.raises(InvalidDocument) as refused:
        joined(query)
    (problem,) = refused.value.problems
    return problem


@pytest.mark.guarantee(
    "G540",
    "Joins, several streams, and branches can be written in SQL and Python and become the same document. SQL that has "
    "no bounded form, such as a join without an end or Flink's `row_number()`, is refused with reason and position.",
    promise="all-forms-of-a-pipeline-agree",
)
@pytest.mark.parametrize(
    ("clause", "kind"),
    [
        ("join", None),
        ("inner join", None),
        ("left join", "left"),
        ("left outer join", "left"),
        ("full outer join", "full"),
    ],
)
def test_an_interval_join(clause, kind):
    key = "coalesce(o.id, s.id) as id" if kind == "full" else "o.id"
    assert join_of(f"select {key}, o.amount, s.carrier as by from orders o {clause} shipments as s on {ON}") == {
        "name": "met",
        "left": "orders",
        "right": "shipments",
        "on": ["id"],
        "within": {"before": "5m", "after": "1h"},
        **({"type": kind} if kind else {}),
        "add": {"amount": "left.amount", "by": "right.carrier"},
    }


@pytest.mark.parametrize(
    ("bounds", "within"),
    [
        ("s.ts between o.ts and o.ts + interval '10' second", {"after": "10s"}),
        ("o.ts between s.ts - interval '4' hour and s.ts", {"after": "4h"}),
        ("s.ts >= o.ts - interval '1' day and s.ts <= o.ts", {"before": "1d"}),
        ("s.ts - interval '2' second <= o.ts and o.ts - interval '1' second <= s.ts", {"before": "1s", "after": "2s"}),
    ],
)
def test_bounds_in_time_are_written_in_many_ways(bounds, within):
    assert join_of(f"select o.id from orders o join shipments s on (o.id = s.id and {bounds})")["within"] == within


@pytest.mark.guarantee("G540")
@pytest.mark.parametrize(
    "side",
    [
        "table(tumble(table {0}, descriptor(ts), interval '5' minute)) {1}",
        "(select * from table(tumble(table {0}, descriptor(ts), interval '5' minute))) as {1}",
    ],
)
def test_a_join_of_windows(side):
    left, right = side.format("orders", "o"), side.format("shipments", "s")
    on = "o.id = s.id and o.window_start = s.window_start and o.window_end = s.window_end"
    found = joined(f"select coalesce(s.id, o.id) as id, o.amount, window_start from {left} full join {right} on {on}")
    assert found["inputs"] == [
        {"stream": name, "event_time": {"delay": "1s", "field": "ts"}} for name in ("orders", "shipments")
    ]
    assert found["steps"][0]["join"] == {
        "name": "met", "left": "orders", "right": "shipments", "on": ["id"], "tumbling": "5m", "type": "full",
        "add": {"amount": "left.amount"},
    }  # fmt: skip


def test_a_column_of_the_key_may_be_selected_under_another_name_too():
    found = join_of(f"select o.id, s.id as shipped, o.amount from orders o left join shipments s on {ON}")
    assert found["add"] == {"shipped": "right.id", "amount": "left.amount"}


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("select o.id, s.id as sid {left} where s.id is null", [{"id": "b"}]),
        ("select o.id, o.id as oid, s.id as sid {left} where o.id <> s.id", []),
        ("select o.id, s.id as sid, coalesce(s.id, 'none') as met {left}",
         [{"id": "a", "sid": "a", "met": "a"}, {"id": "b", "met": "none"}]),
        ("select coalesce(o.id, s.id) as id, o.id as oid {full} where o.id is null", [{"id": "c"}]),
        ("select coalesce(o.id, s.id) as id, s.id as sid {full} where s.id is null and coalesce(s.id, o.id) > 'a'",
         [{"id": "b"}]),
    ],
)  # fmt: skip
def test_the_column_of_a_side_that_a_row_may_lack_is_its_own(query, wanted):
    """Orders a and b, shipments a and c."""
    clauses = {kind: f"from orders o {kind} join shipments s on {ON}" for kind in ("left", "full")}
    streams = "".join(f"create stream {name} (id string, ts timestamp);\n" for name in ("orders", "shipments"))
    text = (
        f"{streams}create view met as {query.format(**clauses)};\ncreate job j with (delay = '1s') as select * from met"
    )
    (pipeline,) = check_documents(translate(text, "x.sql").yaml, "x.yaml", {}).pipelines
    desk = Desk(pipeline, 1)
    for stream, one in (("orders", "a"), ("orders", "b"), ("shipments", "a"), ("shipments", "c")):
        record = json.dumps({"id": one, "ts": "2026-11-01T10:00:00Z"}).encode()
        assert not list(desk.feed(DeskRecords([record], [0], stream=stream)))
    shown = [json.loads(one.document.source) for one in desk.drain() if isinstance(one, DeskResult)]
    found = [{name: row[name] for name in ("id", "oid", "sid", "met") if row.get(name) is not None} for row in shown]
    assert sorted(found, key=str) == wanted


def test_a_full_join_is_printed_with_the_key_of_both_sides():
    key = "coalesce(o.order, s.order) as `order`"
    found = joined(f"select {key}, s.carrier from orders o full join shipments s on {ON.replace('.id', '.order')}")
    (again,) = translate(as_sql([found]), "x.sql").documents
    assert again.data["steps"] == found["steps"]


def test_conditions_and_expressions_see_what_is_selected():
    found = joined(
        f"select o.id, o.amount, s.rate as r, o.amount * s.rate as total from orders o join shipments s on {ON} "
        "where s.rate > 2 and o.id <> 'o.x'"
    )
    assert [step for step in found["steps"] if "join" not in step] == [
        {"where": "r > 2 and id <> 'o.x'"},
        {"derive": {"total": "amount * r"}},
        {"emit": [{"stream": "x"}]},
    ]


@pytest.mark.guarantee("G540")
@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        (f"select * from orders o join shipments s on {ON}", "'*' has columns of both sides"),
        (f"select o.id, carrier from orders o join shipments s on {ON}", "both sides of the join; write NAME.carrier"),
        (f"select o.amount from orders o join shipments s on {ON}", "'id' determines which rows"),
        (f"select o.id from orders o right join shipments s on {ON}", "write 'left join'"),
        (f"select o.id from orders o cross join shipments s on {ON}", "'cross join' is not supported"),
        (f"select o.id from orders o left join shipments s on {ON} where s.id is null", "also select s.id as NAME"),
        (f"select o.id, coalesce(s.id, '') as x from orders o left join shipments s on {ON}", "also select s.id as NAME"),
        (f"select s.id from orders o left join shipments s on {ON}", "write s.id as NAME, or o.id"),
        (f"select o.id from orders o full join shipments s on {ON}", "write o.id as NAME, or coalesce(o.id, s.id) as id"),
        (f"select id, s.id as x from orders o full join shipments s on {ON} where o.id is null", "also select o.id as NAME"),
        (f"select coalesce(o.id, s.id) as x from orders o full join shipments s on {ON}", "'id' determines which rows"),
        (f"select o.id, s.amount as price from orders o join shipments s on {ON} where price > 3", "is the name of 'amount'"),
        (f"select o.id, o.a as x, x + 1 as y from orders o join shipments s on {ON}", "write NAME.a, with the name of its side"),
        (f"select o.id, o.window_start from orders o join shipments s on {ON}", "their own windows; write window_start"),
        (f"select o.id, window_end as x from orders o join shipments s on {ON}", "'window_end' keeps its name in results"),
        (f"select o.id, s.window_start from orders o left join shipments s on {SAME}", "'s.window_start' is of one side"),
        ("select o.id from orders o join shipments s on o.id = s.id", "needs bounds in time"),
        ("select o.id from orders o join shipments s on o.id = s.id and s.ts <= o.ts", "needs bounds in time"),
        (f"select o.id from orders o join shipments s on {ON.replace('o.id', 'o.number')}", "need the same name; derive it"),
        (f"select o.id from orders o join shipments s on {ON} and o.amount = o.price", "compares columns of one side"),
        (f"select o.id from orders o join shipments s on {ON} and s.ts < o.ts", "bounds in time are inclusive"),
        (f"select o.id from orders o join shipments s on {ON} and o.amount > 3", "bounds in time are inclusive"),
        (f"select o.id from orders o join shipments s on {ON} and x = s.x", "'x' can be a column of both sides of the join"),
        (f"select id as x from orders o join shipments s on {ON}", "'id' can be a column of both sides of the join"),
        (f"select o.id from orders o join shipments s on {ON} and lower(o.x) = s.x", "'lower(...)' is an expression, but 'on'"),
        (f"select o.id from orders join orders on {ON}", "no side has the name 'o'"),
        ("select o.id from orders o join shipments o on o.id = o.id", "both sides have the name 'o'"),
        ("select o.id from orders o join shipments s on o.id = s.id and s.ts between o.ts + interval '1' hour and "
         "o.ts + interval '2' hour", "excludes rows at the same time"),
        (f"select o.id from orders o join shipments s on {ON} join more m on m.id = o.id", "a query can have one join"),
        (f"select o.id, count(*) as n from orders o join shipments s on {ON} group by o.id", "make the join a view"),
        (f"select o.id, o.a + s.b as c from orders o join shipments s on {ON}", "uses 'o.a', which is not selected"),
        ("select o.id from orders o join table(tumble(table shipments, descriptor(ts), interval '1' minute)) s on o.id = s.id",
         "both sides must use tumble"),
        ("select a from orders union select a from shipments", "'union' removes duplicates"),
        ("select a, b from orders union all select b, a from shipments", "unites columns by name"),
    ],
)  # fmt: skip
def test_what_a_join_or_a_union_can_not_say_is_refused(query, sentence):
    problem = refusal(query)
    assert sentence in problem.message and problem.line == 1 and problem.column


def test_the_bounds_of_a_join_name_no_column_that_is_computed():
    side = "(select id, sent as ts from (select id, sent from shipments))"
    query = f"select o.id from orders o join {side} s on {ON}"
    problem = refusal(query)
    assert "'ts' is computed before, but event time is a column of the stream" in problem.message
    assert problem.column == len("create view met as ") + query.index("s.ts") + 1
    found = joined(query.replace("s.ts", "s.sent"))
    assert found["inputs"][1] == {"stream": "shipments", "event_time": {"delay": "1s", "field": "sent"}}


@pytest.mark.parametrize("column", ["true", "null", "end", "case", "current_date"])
def test_a_quoted_column_stays_one_behind_a_join(column):
    """Without its backticks `true` is the constant, and no row is left out."""
    selected = f"o.id, o.`{column}`, o.amount as `false`, o.`{column}` = o.amount as same"
    query = f"select {selected} from orders o join shipments s on {ON}"
    steps = joined(f"{query} where o.`{column}`")["steps"]
    assert steps[1] == {"where": f"`{column}`"}
    assert steps[2]["derive"] == {"same": f"`{column}` = `false`"}


UNITED = """
create view power as
select site_id, watts / 1000 as power from inverters
union all
(select site_id, power from turbines);
create job j with (inputs.inverters.event_time = 'time', inputs.inverters.delay = '1m', delay = '10s', start = 'latest') as
begin
  insert into stream 'a' select site_id, window_start, window_end, sum(power) as p
  from tumble(table power, descriptor(event_time), interval '1' minute) as per_site group by site_id, window_start, window_end;
  insert into stream 'b' select turbine, window_start, window_end, count(*) as n
  from tumble(table turbines, descriptor(ts), interval '1' minute) as per_turbine group by turbine, window_start, window_end;
end;
"""


@pytest.mark.guarantee("G540")
def test_streams_are_united_and_each_has_its_event_time():
    found = document(UNITED)
    assert found["inputs"] == [
        {"stream": "inverters", "start": "latest", "event_time": {"delay": "1m", "field": "time"}},
        {"stream": "turbines", "start": "latest", "event_time": {"delay": "10s", "field": "ts"}},
    ]
    assert [(step.get("from"), next(iter(step))) for step in found["steps"]] == [
        ("inverters", "derive"),
        (None, "select"),
        ("turbines", "select"),
        (["rows", "rows_rows"], "window"),
        ("turbines", "window"),
    ]


def test_a_stream_of_several_without_event_time_is_told_with_the_remedy():
    query = "create job j with (delay = '1s') as\ninsert into stream 'c' select a from x union all select a from y"
    with pytest.raises(
        InvalidDocument,
        match=r"x\.sql:1:12: .*doesn't name the column of event time of this stream.*'inputs\.STREAM\.event_time'",
    ):
        document(query)


def test_what_the_clause_has_no_word_for_is_a_function_of_two_relations():
    """`max_rows`, and a name that a view of another job has."""
    found = joined(f"select o.id, s.carrier from orders o join shipments s on {ON}")
    steps = [{**found["steps"][0], "join": {**found["steps"][0]["join"], "max_rows": 5}}]
    assert "join(table orders, table shipments, name => 'met'" in as_sql([{**found, "steps": steps}])
    both = [found, {**found, "pipeline": "k", "steps": steps}]
    assert [one.data["steps"] for one in translate(as_sql(both), "x.sql").documents] == [found["steps"], steps]
    twice = as_sql([found, {**found, "pipeline": "k"}])
    assert twice.count("table(join(") == 1
    assert [one.data["steps"] for one in translate(twice, "x.sql").documents] == [found["steps"]] * 2


def test_a_join_of_a_union_takes_from_a_step_of_its_own():
    query = f"select o.id from (select * from a union all select * from b) o join shipments s on {ON}"
    steps = joined(query)["steps"]
    assert steps[0] == {"where": "true", "from": ["a", "b"], "name": "rows"} and steps[1]["join"]["left"] == "rows"
