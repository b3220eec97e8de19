"""The document of a dead letter holds what a person looks for, and is bounded whatever the dead letter holds."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.results.dead_letters.documents import (
    BYTES_MAX,
    DEAD_LETTER_FIELDS,
    TEXT_CHARACTERS_MAX,
    dead_letter_document,
)
from strandline.results.names import check_emit_name
from strandline.results.sinks.elasticsearch.document import IndexSpec

HEADERS = {
    "reason": "schema", "message": "power is missing", "step": "decode", "stream": "turbines", "partition": "2", "offset": "4711",
}  # fmt: skip


def document(value: bytes, headers: dict[str, str] = HEADERS, number: int = 17) -> dict[str, Any]:
    made = dead_letter_document("farm.dead-letters", "topic-a", number, 1_793_491_200_250, headers, value)
    assert (made.id, made.index) == (f"topic-a-{number}", "farm.dead-letters")
    assert b"\n" not in made.source
    source: dict[str, Any] = json.loads(made.source)
    assert source.keys() <= DEAD_LETTER_FIELDS.keys(), "the mapping is strict"
    return source


def test_a_record_that_could_not_be_used_is_told_with_its_text_and_its_bytes() -> None:
    assert document(b'{"power": \xff') == {
        "@timestamp": "2026-11-01T00:00:00.250+00:00",
        "reason": "schema",
        "message": "power is missing",
        "step": "decode",
        "stream": "turbines",
        "partition": 2,
        "offset": 4711,
        "text": '{"power": \\xff',
        "bytes": base64.b64encode(b'{"power": \xff').decode(),
        "size": 11,
        "number": 17,
        "topic_id": "topic-a",
    }


def test_a_refused_result_is_told_with_its_index_and_id() -> None:
    told = document(b"{}", {"reason": "result", "index": "farm-2026.11", "document": "abc"})
    assert (told["index"], told["document"]) == ("farm-2026.11", "abc")
    assert told.keys().isdisjoint({"stream", "partition", "offset"})


@pytest.mark.parametrize("size", [0, 1, BYTES_MAX, BYTES_MAX + 1, 5_000_000])
def test_bytes_are_whole_or_left_out(size: int) -> None:
    told = document(b"\x80" * size)
    assert told["size"] == size
    if 0 < size <= BYTES_MAX:
        assert base64.b64decode(told["bytes"]) == b"\x80" * size
    else:
        assert "bytes" not in told
    assert told.get("text", "") == ("\\x80" * size)[:TEXT_CHARACTERS_MAX]


def test_a_dead_letter_without_its_bytes_says_how_many_they_were() -> None:
    told = document(b"", HEADERS | {"payload-bytes": "3000000", "payload-sha256": "00"})
    assert told["size"] == 3_000_000
    assert told.keys().isdisjoint({"text", "bytes"})


@given(text=st.text(max_size=12_000), head=st.integers(0, 4))
def test_a_text_that_is_cut_is_cut_between_characters(text: str, head: int) -> None:
    whole = "x" * head + text * 4
    assert document(whole.encode()).get("text", "") == whole[:TEXT_CHARACTERS_MAX]


def test_a_number_that_no_number_field_takes_is_left_out() -> None:
    assert document(b"x", HEADERS | {"offset": "9" * 30}).keys().isdisjoint({"offset"})


@pytest.mark.parametrize("name", ["farm.dead-letters", "farm.dead-letters.write"])
def test_no_result_goes_where_dead_letters_go(name: str) -> None:
    with pytest.raises(ValueError, match="ends like an index of dead letters"):
        check_emit_name(name)
    assert [message for _, message in IndexSpec.model_construct(name=name, refresh_interval=None).contradictions()]
    check_emit_name("farm.dead-letters-of-old")
