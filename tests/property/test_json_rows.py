"""Fields anywhere in a JSON object: an independent reading of one record at a time gives the same rows as all at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.record_fields import Rejection
from strandline.processing.formats.record_rows import RowReader, record_format
from tests.support.examples import examples

SCHEMA = {
    "a": {"type": "double?", "from": "$.m.a"},
    "b": {"type": "double?", "from": "$.m.list[1].b"},
    "c": {"type": "double?", "text": True},
    "d": {"type": "double?", "from": '$["m"].d.a'},
}
PATHS: dict[str, list[str | int]] = {
    "a": ["m", "a"],
    "b": ["m", "list", 1, "b"],
    "c": ["c"],
    "d": ["m", "d", "a"],
}
NAMES = st.sampled_from(["m", "a", "b", "c", "d", "list", "readings", "other", "ä"])
MISSING = object()


class Pairs(list[tuple[str, Any]]):
    """An object with its names as they are written, including repeated ones."""


SCALARS = st.sampled_from(["1", "2.50", "null", '"7"', '" 8 "', '"x"', "true", '"\\u0061"'])
TEXTS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + " ,".join(items) + "]"),
        st.lists(st.tuples(NAMES, inner), max_size=4).map(
            lambda members: "{" + ",".join(f"{json.dumps(name)}: {value}" for name, value in members) + " }"
        ),
    ),
    max_leaves=12,
)
PLAIN = '{"m":{"a":1,"list":[0,{"b":2}],"d":{"a":3}},"c":4}'
TWICE = [
    PLAIN.replace(one, two)
    for one, two in [('"c":4', '"c":4,"c":5'), ('"a":1', '"a":1,"a":1'), ('"b":2', '"b":2,"b":1')]
]
GOOD = '{"m":{"a":1,"list":[0,{"b":2}],"d":{"a":3}},"c":4,"readings":[{"c":1},{}]}'
RECORDS = st.lists(
    st.one_of(
        st.sampled_from([GOOD, PLAIN, *TWICE]),
        st.lists(st.tuples(NAMES, TEXTS), max_size=5).map(
            lambda members: (
                "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{value}" for name, value in members) + "}"
            )
        ),
        TEXTS,
        st.text(max_size=5),
    ).map(str.encode),
    max_size=6,
)


def stands_at(value: Any, path: list[str | int]) -> Any:
    for step in path:
        if isinstance(step, str):
            value = dict(value).get(step, MISSING) if isinstance(value, Pairs) else MISSING
        else:
            is_there = isinstance(value, list) and not isinstance(value, Pairs) and step < len(value)
            value = value[step] if is_there else MISSING
    return value


def repeats(value: Any, names: set[str]) -> bool:
    if isinstance(value, Pairs):
        own = [name for name, _ in value if name in names]
        return len(own) > len(set(own)) or any(repeats(inner, names) for _, inner in value)
    return isinstance(value, list) and any(repeats(inner, names) for inner in value)


def numbers(values: dict[str, Any]) -> dict[str, Any]:
    """Replace the text of c by the number that it gives, if any."""
    found = {name: value for name, value in values.items() if value is not MISSING}
    if isinstance(found.get("c"), str) and found["c"].strip() in ("7", "8"):
        found["c"] = int(found["c"])
    elif isinstance(found.get("c"), str):
        found["c"] = found["c"].strip()
    return found


def expected(record: bytes, explode: str | None) -> list[dict[str, Any]] | str:
    """The rows by the json module; `same` for what stays as it is, `rejected` for what is rejected whole.
    Unreadable records are rejected here, so that their reason names a byte of the record."""
    try:
        value = json.loads(record, object_pairs_hook=Pairs)
    except ValueError:
        return "rejected"
    if not isinstance(value, Pairs):
        return "same"
    names = {step for path in PATHS.values() for step in path if isinstance(step, str)} | {explode or "a"}
    if repeats(value, names):
        return "rejected"
    beside = {name: stands_at(value, path) for name, path in PATHS.items()}
    if explode is None:
        return [numbers(beside)]
    elements = stands_at(value, [explode])
    if not isinstance(elements, list) or isinstance(elements, Pairs):
        return "rejected"
    rows = []
    for element in elements:
        own = {name: stands_at(element, path) for name, path in PATHS.items()}
        rows.append(numbers({name: beside[name] if own[name] is MISSING else own[name] for name in PATHS}))
    return rows


def found(records: list[bytes], explode: str | None) -> list[list[dict[str, Any]] | str]:
    document = {"stream": "s", "schema": SCHEMA} | ({"explode": f"$.{explode}"} if explode else {})
    rows: list[Any] = [[] for _ in records]
    for part in RowReader(record_format(StreamSpec.from_document(document))).parts(records, []):
        for text, place in zip(part.texts, part.of_each(range(len(records))), strict=True):
            if isinstance(text, Rejection):
                rows[place] = "rejected"
            elif text == records[place] and expected(records[place], explode) == "same":
                rows[place] = "same"
            else:
                assert isinstance(text, bytes)
                pairs = json.loads(text, object_pairs_hook=Pairs)
                assert not repeats(pairs, set(SCHEMA))
                rows[place].append(dict(pairs))
    return rows


@pytest.mark.guarantee("G206")
@examples(300)
@given(RECORDS, st.sampled_from([None, "readings"]))
def test_an_independent_reading_gives_the_same_rows(records: list[bytes], explode: str | None) -> None:
    assert found(records, explode) == [expected(record, explode) for record in records]


@pytest.mark.guarantee("G206")
@given(st.lists(st.sampled_from([GOOD, PLAIN, PLAIN, PLAIN, *TWICE, "{}", "{"]).map(str.encode), max_size=40))
def test_neighbours_never_matter(records: list[bytes]) -> None:
    assert found(records, None) == [found([record], None)[0] for record in records]
