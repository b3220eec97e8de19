"""Records of several slices that are read at once, as a replay does."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise

import pytest

from strandline.core.stream import StreamSpec
from strandline.ledger.states import EventTimeRule
from strandline.log.range_reader import FetchedRecords
from strandline.log.reader import OffsetRange
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model import PipelineSpec
from strandline.processing.source import decoding
from strandline.processing.source.decoding import decode_pieces, decoding_of
from strandline.processing.source.source_config import Piece
from tests.support.ledgers import a_slice

STREAM = StreamSpec.from_document({"stream": "s", "schema": {"ts": {"type": "timestamp"}}})
PIPELINE = check(
    PipelineSpec.from_document(
        {
            "pipeline": "p",
            "input": {"stream": "s"},
            "event_time": {"field": "ts", "delay": "1s"},
            "steps": [
                {
                    "window": {"name": "w", "tumbling": "1m", "aggregate": {"n": "count(*)"}},
                    "emit": [{"elasticsearch": "w"}],
                }
            ],
        }
    ),
    STREAM,
)
LOG_MS = 100_000
EVENTS_MS = [50_000, 90_000, 100_000, 160_000, 400_000] * 4
RULES = [
    EventTimeRule(1_000, None, 60_000),
    EventTimeRule(50_000, 60_000, 60_000, "newest"),
    EventTimeRule(50_000, 60_000, None),
    EventTimeRule(0, None, 0),
]
"""Of four versions of a job, each in force for one slice of five records."""
WATERMARKS_MS = [None, 60_000, 95_000, 95_000]


class Reader:
    """Gives the records of one partition, each logged at LOG_MS."""

    def read(self, ranges, header, headers_beside=()):
        for one in ranges:
            offsets = list(range(one.offset_first, one.offset_next))
            values = [json.dumps({"ts": EVENTS_MS[offset]}).encode() for offset in offsets]
            yield FetchedRecords(one, offsets, [LOG_MS] * len(offsets), values, [])


def refused(pieces):
    """(offset, reason) of each record that is refused."""
    config = decoding_of(PIPELINE, "nowhere")
    return [
        (chunk.offsets[reject.index], reject.reason)
        for chunk in decode_pieces(config, pieces)
        for reject in chunk.decoded.rejects
    ]


def test_each_record_is_judged_by_the_rule_that_was_recorded_with_its_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version that replays has a rule of its own, and it doesn't count."""
    monkeypatch.setattr(decoding, "reader_of_process", lambda bootstrap: Reader())
    pieces = [
        Piece.of_slice(a_slice(at + 1, watermark_ms=WATERMARKS_MS[at], rule=RULES[at]), OffsetRange("s", 0, first, end))
        for at, (first, end) in enumerate(pairwise(range(0, 25, 5)))
    ]
    expected = [
        [(4, "future_event")],
        [(5, "late"), (9, "future_event")],
        [(10, "late"), (11, "late")],
        [(15, "late"), (16, "late"), (18, "future_event"), (19, "future_event")],
    ]
    assert [refused([piece]) for piece in pieces] == expected
    assert refused(pieces) == [one for of_slice in expected for one in of_slice]


def test_the_last_record_of_a_slice_must_be_the_recorded_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of pieces that are read at once, the last one's counts: nothing below a record that is still there was replaced."""
    ranges: list[OffsetRange] = []

    class Asked(Reader):
        def read(self, wanted, header, headers_beside=()):
            ranges.extend(wanted)
            return super().read(wanted, header)

    monkeypatch.setattr(decoding, "reader_of_process", lambda bootstrap: Asked())
    row = partial(a_slice, rule=RULES[0], watermark_ms=None)
    first = row(1, offsets={"s": {0: 5}}, checksums={"s": {0: 111}})
    second = row(2, offsets={"s": {0: 10}}, checksums={"s": {0: 222}})
    refused([Piece.of_slice(first, OffsetRange("s", 0, 0, 5)), Piece.of_slice(second, OffsetRange("s", 0, 5, 10))])
    refused([Piece.of_slice(second, OffsetRange("s", 0, 5, 8))])
    refused([Piece.of_slice(row(2, offsets={"s": {0: 10}}), OffsetRange("s", 0, 5, 10))])
    assert ranges == [OffsetRange("s", 0, 0, 10, 222), OffsetRange("s", 0, 5, 8), OffsetRange("s", 0, 5, 10)]
