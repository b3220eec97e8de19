"""Every text of JSONTestSuite, as a record and inside of one: accepted or a dead letter, as the suite says; its neighbours never
matter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strandline.core.streams.stream import StreamSpec
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.pipelines.event_time import EventTimeSource

TEXTS = json.loads((Path(__file__).parents[1] / "support" / "json_test_suite.json").read_text())["texts"]
SUITE = {name: text.encode("utf-8", "surrogatepass") for name, text in TEXTS.items()} | {
    "n_structure_100000_opening_arrays": b"[" * 100_000,
    "n_structure_open_array_object": b'[{"":' * 10_000,
    "i_structure_500_nested_arrays": b"[" * 500 + b"]" * 500,
    "i_structure_UTF-8_BOM_empty_object": b"\xef\xbb\xbf{}",
    "n_structure_incomplete_UTF8_BOM": b"\xef\xbb{}",
    "n_string_invalid_utf8": b'["\xff"]',
    "n_string_invalid_utf8_after_escape": b'["\\\xe5"]',
    "n_object_lone_continuation_byte_in_key": b'{"\xb9":"0",}',
    "n_array_invalid_utf8": b"[\xff]",
    "n_number_invalid_utf8_in_int": b"[0\xe5]",
    "i_string_truncated_utf8": b'["\xe0\xff"]',
    "i_string_overlong_sequence": b'["\xc0\xaf"]',
    "i_string_surrogate_in_utf8": b'["\xed\xa0\x80"]',
    "i_string_utf16le": "\ufeff[\"é\"]".encode("utf-16-le"),
}  # fmt: skip
FIELDS = {"name": "string", "n": "long?"}
STREAMS: dict[str, dict[str, Any]] = {
    "json": {"schema": FIELDS},
    "paths": {"schema": {"name": {"type": "string", "from": "$.in.name"}, "n": "long?"}},
    "explode": {"schema": FIELDS, "explode": "$.all"},
    "debezium": {"schema": FIELDS, "format": "debezium"},
}
AROUND = {
    "json": b'{"name":"a","x":%s}',
    "paths": b'{"in":{"name":"a","x":%s}}',
    "explode": b'{"all":[{"name":"a","x":%s}]}',
    "debezium": b'{"op":"c","after":{"name":"a","x":%s}}',
}


class Stream:
    def __init__(self, name: str) -> None:
        spec = StreamSpec.from_document({"stream": "s", **STREAMS[name]})
        self._reader = RowReader(config := record_format(spec))
        self._decoder = Decoder(config.fields, EventTimeSource(None), list(FIELDS))

    def outcomes(self, *records: bytes) -> list[str]:
        """`accepted`, or the reason and message, of each row."""
        found: list[str] = []
        for rows in self._reader.parts(records, []):
            decoded = self._decoder.decode(rows.texts, [0] * len(rows.texts), None)
            rejects = {one.index: f"{one.reason}: {one.message}" for one in decoded.rejects}
            found += [rejects.get(at, "accepted") for at in range(len(rows.texts))]
        return found


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.long if one != "json" else ()) for one in STREAMS]
)
def test_each_text_is_accepted_or_a_dead_letter_as_the_suite_says(name: str) -> None:
    stream = Stream(name)
    good = AROUND[name] % b"0"
    for case, text in SUITE.items():
        for record in (text, AROUND[name] % text):
            (alone,) = stream.outcomes(record)
            assert stream.outcomes(good, record, good) == ["accepted", alone, "accepted"], case
        # The element inside the otherwise valid record decides its outcome. No text of the suite is a record itself.
        if not case.startswith("i_"):
            assert (alone == "accepted") == case.startswith("y_"), (case, alone)
        assert stream.outcomes(text)[0] != "accepted", case


def test_the_suite_is_whole() -> None:
    kinds = [case[0] for case in SUITE]
    assert (kinds.count("y"), kinds.count("n"), kinds.count("i")) == (95, 182, 26)
