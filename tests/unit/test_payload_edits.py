"""Edits of payloads of dead letters."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import InvalidDocument
from strandline.services.jobs.payload_edits import PayloadEdit, check_edits, edited

RECORD = b'{ "id":"a" ,"power" : "4.250", "n": 10000000000000000001, "at": {"x": [1, {"y": 2}]} }\n'


def one(edit: str, field: str, to: str = "", value: object = None) -> PayloadEdit:
    return PayloadEdit(edit, field, to, value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (one("number", "power"), b'"4.250"', b"4.250"),
        (one("set", "power", value=None), b'"4.250"', b"null"),
        (one("rename", "power", "watt"), b'"power" :', b'"watt" :'),
        (one("remove", "power"), b' ,"power" : "4.250"', b""),
        (one("remove", "id"), b'"id":"a" ,', b""),
        (one("set", "$.at.x[1].y", value={"z": "ü"}), b'{"y": 2}', '{"y": {"z": "ü"}}'.encode()),
        (one("set", "$.at.unit", value="kW"), b"[1, {", b"[1, {"),
        (one("replace", '"4.250"', "4.25"), b'"4.250"', b"4.25"),
    ],
)
def test_an_edit_changes_only_its_member(edit: PayloadEdit, before: bytes, after: bytes) -> None:
    expected = RECORD.replace(before, after)
    if edit.field == "$.at.unit":
        expected = RECORD.replace(b"]}", b'], "unit": "kW"}')
    assert edited(RECORD, [edit]) == expected


@pytest.mark.parametrize(("text", "number"), [("-1004,84", -1004.84), (" 0,125 ", 0.125), ("7,5", 7.5)])
def test_a_string_with_a_decimal_comma_becomes_a_number(text: str, number: float) -> None:
    payload = json.dumps({"power": text}).encode()
    assert json.loads(edited(payload, [one("number", "power")])) == {"power": number}


def test_edits_are_applied_in_the_order_of_their_kinds() -> None:
    edits = [one("remove", "old"), one("set", "power", value=1), one("rename", "p", "power"), one("replace", "P", "p")]
    assert json.loads(edited(b'{"P": 7, "old": 1}', edits)) == {"power": 1}


def test_a_member_is_added_to_an_empty_object_and_a_repeated_one_is_set_where_it_is_read() -> None:
    assert edited(b"{}", [one("set", "power", value=1.5)]) == b'{"power": 1.5}'
    assert edited(b'{"a": 1, "a": 2}', [one("set", "a", value=3)]) == b'{"a": 1, "a": 3}'


@pytest.mark.parametrize(
    ("payload", "edit", "message"),
    [
        (b'{"power": "ERR"}', one("number", "power"), "isn't a number"),
        (b'{"power": "1,234"}', one("number", "power"), "can be a fraction or thousands"),
        (b'{"power": "1"}', one("rename", "watt", "power"), "change nothing"),
        (b'{"power": ', one("set", "power", value=1), "isn't JSON"),
        (b"{} {}", one("set", "power", value=1), "isn't JSON"),
        (b"\xff", one("replace", "a", "b"), "isn't UTF-8"),
        (b"[" * 100_000, one("set", "$[0]", value=1), "JSON|nested too deeply"),
        (b'{"power": 1}', one("set", "$.power.unit", value=1), "no object"),
    ],
)
def test_a_payload_that_cannot_be_edited_is_refused(payload: bytes, edit: PayloadEdit, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        edited(payload, [edit])


@pytest.mark.parametrize(
    "edit", [one("set", ""), one("set", "$"), one("set", "$.a["), one("rename", "a"), one("replace", "")]
)
def test_edits_that_can_apply_to_nothing_are_invalid(edit: PayloadEdit) -> None:
    with pytest.raises(InvalidDocument, match=r"edits\.0"):
        check_edits([edit])


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    record=st.dictionaries(
        st.text(min_size=1).filter(lambda name: not name.startswith("$")), _values, min_size=1, max_size=5
    ),
    value=_values,
    indent=st.none() | st.just(2),
    data=st.data(),
)
def test_an_edit_is_that_of_the_decoded_record(
    record: dict[str, object], value: object, indent: int | None, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(record)))
    payload = json.dumps(record, indent=indent, ensure_ascii=False).encode()
    if record[name] != value or type(record[name]) is not type(value):
        assert json.loads(edited(payload, [one("set", name, value=value)])) == {**record, name: value}
    rest = {key: kept for key, kept in record.items() if key != name}
    assert json.loads(edited(payload, [one("remove", name)])) == rest
