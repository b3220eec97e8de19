"""Generated documents as SQL and as Python: each is read back as the same document."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.documents import YamlDocument, read_documents
from strandline.core.errors import InvalidDocument, Problem
from strandline.core.times.durations import format_duration
from strandline.frontends.document_text import write_documents
from strandline.frontends.python.printer import as_python
from strandline.frontends.sql.printer import as_sql
from strandline.frontends.sql.translation import translate
from tests.support.examples import examples
from tests.unit.test_front_ends import canonical, of_python

WORDS = (
    "turbine",
    "site",
    "power",
    "Load",
    "order",
    "from",
    "limit",
    "offset",
    "group",
    "as",
    "n_1",
    "x_",
    "end",
    "select",
)
CONDITIONS = (
    "power > 1", "power between 1 and 2 or site in ('a', 'from; x')", "not (power is null)", "site like '%a\\'b'",
    'case when power > 1 then true else site = "order by" end', "limit + offset * 2 >= 1e3", "`order` <> 'it' and t1 <=> 2",
)  # fmt: skip
VALUES = (
    "power / 2", "coalesce(power, 0)", "cast(site as int)", "'a  b'", "if(power > 1, 'x', \"y\")", "- power", "a || 'b'", "power",
    "round(power, 2)", "case power when 1 then 'one' end",
)  # fmt: skip
AGGREGATES = (
    "count(*)",
    "sum(power)",
    "avg(power / 2)",
    "max(if(power > 1, power, 0)) - min(power)",
    "sum(n) / count(n)",
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=8)
FIELD = st.sampled_from(WORDS)
DURATION = st.integers(1, 100_000_000).map(format_duration) | st.sampled_from(["10s", "1m", "1h30m", "7d", "250ms"])
NAME = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,8}", fullmatch=True).filter(lambda one: not one.endswith(".dead-letter"))


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A mapping with some of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


FIELD_SPEC = st.sampled_from(
    ["string", "long?", "double", "decimal(10,2)?", "timestamp", "boolean"]
) | st.fixed_dictionaries(
    {"type": st.just("double")},
    optional={
        "required": st.booleans(),
        "min": st.integers(-5, 0) | st.floats(-1e300, 0),
        "from": st.sampled_from(["$.a.b", '$["it\'s"]', "$.x[0]"]),
        "text": st.booleans(),
    },
)
STREAM = st.fixed_dictionaries(
    {"stream": NAME, "schema": st.dictionaries(FIELD, FIELD_SPEC, min_size=1, max_size=5)},
    optional={
        "partitions": st.integers(1, 9),
        "retention": DURATION | st.just("forever"),
        "durability": st.sampled_from(["log", "spool"]),
        "udp": st.fixed_dictionaries({"port": st.integers(1, 65_535)}, optional={"framing": st.just("lines")}),
        "mqtt": st.fixed_dictionaries({"topics": st.lists(TEXTS.filter(lambda t: not {*t} & {*"+#"}), min_size=1, max_size=3)}),
        "poll": st.lists(
            st.fixed_dictionaries(
                {"url": st.just("http://10.0.0.5/status")},
                optional={"every": st.just("30s"), "headers": st.just({"accept": "it's; \\ {a}"})},
            ),
            min_size=1,
            max_size=1,
        ),
    },
)  # fmt: skip
PLACE = st.one_of(
    NAME.map(lambda name: {"elasticsearch": name}),
    NAME.map(lambda name: {"stream": name}),
    st.tuples(NAME, some(shards=st.integers(1, 3), replicas=st.sampled_from([0, "0-all"]), lifecycle=st.just("a"))).map(
        lambda one: {"elasticsearch": {"name": one[0], **one[1]}}
    ),
    st.just({"files": {"path": "s3://bucket/it's", "format": "parquet"}}),
    st.just({"sql": {"table": "public.Hours"}}),
    st.builds(
        lambda options: {"sink": {"use": "mine", "name": "x", "options": options}},
        st.dictionaries(TEXTS, TEXTS | st.booleans() | st.integers(-9, 9) | st.floats(-1e9, 1e9), max_size=2),
    ),
)
EMIT = st.lists(PLACE, min_size=1, max_size=2)
RECORD_STEPS = st.one_of(
    st.dictionaries(FIELD.map(lambda name: f"{name}_new"), st.sampled_from(VALUES), min_size=1, max_size=3).map(
        lambda one: {"derive": one}
    ),
    st.sampled_from(CONDITIONS).map(lambda one: {"where": one}),
    st.lists(FIELD, min_size=1, max_size=3, unique=True).map(lambda one: {"select": one}),
    st.lists(FIELD, min_size=1, max_size=3, unique=True).map(lambda one: {"drop": one}),
)
SHAPE = st.one_of(
    DURATION.map(lambda size: {"tumbling": size}),
    st.integers(1, 50).flatmap(
        lambda times: st.integers(1, 3_600_000).map(
            lambda every: {"sliding": {"size": format_duration(every * times), "every": format_duration(every)}}
        )
    ),
)


@st.composite
def pipelines(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a pipeline's document with the parts that SQL can express.

    Results of a window are emitted directly or after further steps.
    """
    steps: list[dict[str, Any]] = draw(st.lists(RECORD_STEPS, max_size=4))
    if draw(st.booleans()):
        steps.append({"emit": draw(EMIT)} | ({"name": "rows"} if draw(st.booleans()) else {}))
        steps += draw(st.lists(RECORD_STEPS, max_size=2))
    windows = draw(st.integers(0, 3))
    for number in range(windows):
        keys = draw(st.lists(FIELD, max_size=2, unique=True))
        aggregate = draw(
            st.dictionaries(FIELD.map(lambda name: f"{name}_a"), st.sampled_from(AGGREGATES), min_size=1, max_size=3)
        )
        window = {"name": f"w{number}", **draw(SHAPE), **({"by": keys} if keys else {}), "aggregate": aggregate}
        steps.append({"window": window})
        behind = draw(st.lists(RECORD_STEPS, max_size=3))
        if number == windows - 1 or draw(st.booleans()):
            emit = {"emit": draw(EMIT)}
            if behind:
                steps += [*behind, emit]
            else:
                steps[-1] |= emit
        else:
            steps += behind
    if not any("emit" in step for step in steps):
        steps.append({"emit": draw(EMIT)})
    if not windows:  # what follows the last emission would be in no insert
        steps = steps[: max(number for number, step in enumerate(steps) if "emit" in step) + 1]
    field = {"field": "ts", "delay": draw(DURATION)} | draw(some(**{"else": st.just("log")}))
    limits = draw(some(idle_timeout=DURATION | st.none(), max_ahead=DURATION | st.none(), watermark=st.just("newest")))
    return {
        "pipeline": draw(NAME),
        "input": {"stream": draw(NAME)} | draw(some(start=st.just("latest"))),
        "event_time": draw(st.sampled_from([field, {"from": "log"}])) | limits,
        "steps": steps,
        **draw(
            some(
                late=st.just("drop"),
                on_error=st.just("crash"),
                checkpoint=some(every=DURATION, records=st.integers(1, 9)).filter(bool),
                dead_letters=some(index=st.booleans(), retention=DURATION).filter(bool),
            )
        ),
    }


@pytest.mark.guarantee("G430")
@examples(60)
@given(
    st.lists(
        STREAM | pipelines(), min_size=1, max_size=3, unique_by=lambda one: str(one.get("stream", one.get("pipeline")))
    )
)
def test_generated_documents_are_the_same_in_all_three_forms(data):
    wanted = canonical(read_documents(write_documents(data), "x.yaml"))
    as_it_is = [YamlDocument("stream" if "stream" in one else "pipeline", "", one) for one in data]
    assert canonical(as_it_is) == wanted
    sql = as_sql(data)
    assert canonical(read_documents(translate(sql, "x.sql").yaml, "x.sql")) == wanted, sql
    program = as_python(data)
    assert of_python(program) == wanted, program


EXAMPLE = (Path(__file__).parents[2] / "examples" / "sql" / "turbines.sql").read_text()
SIGNS = "( ) , ; . * = ' \" ` -- /* */ begin end case map( array[ ] with null - 1 1e5 => as 'x' \u00e4"
PIECES = (*EXAMPLE.split(), *SIGNS.split(" "))
WITHOUT_PLACE = ("can be read", "contains no statement")


def problems_of(read: Callable[[], object]) -> list[Problem]:
    """Return the problems, if any. Any other error is a bug."""
    try:
        read()
    except InvalidDocument as error:
        return error.problems
    return []


@examples(150)
@given(st.lists(st.sampled_from(PIECES), max_size=40), st.integers(0, 200), st.integers(0, 60))
def test_any_text_becomes_documents_or_a_refusal_with_a_place(pieces, at, left_out):
    """The example's words with others between them, and some left out."""
    words = EXAMPLE.split(" ")
    text = " ".join([*words[:at], *pieces, *words[at + left_out :]])
    found = problems_of(lambda: translate(text, "x.sql"))
    if not found:
        for document in translate(text, "x.sql").yaml_documents():
            found += problems_of(lambda document=document: canonical([document]))
    for problem in found:
        assert problem.source == "x.sql"
        assert problem.line or any(sentence in problem.message for sentence in WITHOUT_PLACE), problem
