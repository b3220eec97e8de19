"""Records of several slices that are read at once, as a replay does."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import EventTimeRule
from strandline.log.range_reader import FetchedRecords
from strandline.log.reader import OffsetRange
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.source import decoding
from strandline.processing.source.decoding import decode_pieces, decoding_of, task_config
from strandline.processing.source.slice_rows import FACTS, decode_facts, sessions_after
from strandline.processing.source.source_config import Piece
from strandline.processing.source.source_task import SourceTask
from tests.support.ledgers import a_slice
from tests.support.sparkplug import metric, payload, topic

STREAM = StreamSpec.from_document({"stream": "s", "schema": {"ts": {"type": "timestamp"}}})
PIPELINE = check(
    PipelineSpec.from_document(
        {
            "pipeline": "p",
            "input": {"stream": "s"},
            "event_time": {"field": "ts", "delay": "1s", "idle_timeout": None},
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
"""The rules of four versions of a job, each in force for one slice of five records."""
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


@pytest.mark.guarantee("G25")
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
    """The reader compares the last record of each piece, for pieces that are read together."""
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
    assert ranges == [
        OffsetRange("s", 0, 0, 10, 222, inner_checksums=((4, 111),)),
        OffsetRange("s", 0, 5, 8),
        OffsetRange("s", 0, 5, 10),
    ]


NODES = StreamSpec.from_document(
    {
        "stream": "s",
        "format": "sparkplug",
        "partitions": 1,
        "mqtt": {"topics": ["spBv1.0/+/+/+"], "fields": {"node": 3}},
        "schema": {"node": "string", "metric": "string", "value": {"type": "double", "from": "$.value_double"}},
    }
)
PIPELINE_OF_NODES = check(
    PipelineSpec.from_document(
        {
            "pipeline": "p",
            "input": {"stream": "s"},
            "event_time": {"from": "log", "delay": "1s", "idle_timeout": None},
            "steps": [
                {
                    "window": {"name": "w", "tumbling": "1m", "aggregate": {"n": "count(*)"}},
                    "emit": [{"elasticsearch": "w"}],
                }
            ],
        }
    ),
    NODES,
)
MESSAGES = [
    ("NBIRTH", payload(metric("a", 1.0, "Double", alias=1), seq=0, time=1)),
    ("NDATA", payload(seq=1, time=2)),  # a row for each metric: none
    ("NDATA", payload(metric(alias=1, value=2.0, kind="Double"), seq=2, time=3)),
]


class NodeReader:
    """Gives the messages of one node."""

    def read(self, ranges, header, headers_beside=()):
        for one in ranges:
            offsets = list(range(one.offset_first, one.offset_next))
            kinds, values = zip(*MESSAGES[one.offset_first : one.offset_next], strict=True)
            yield FetchedRecords(one, offsets, [LOG_MS] * len(offsets), list(values), [topic(kind) for kind in kinds])


@pytest.mark.guarantee("G372")
@pytest.mark.parametrize("cuts", [(0, 3), (0, 1, 3), (0, 2, 3), (0, 1, 2, 3)])
def test_what_records_declare_does_not_depend_on_slices(
    cuts: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice whose records give no row moves it, too."""
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    Ledger.open(url).close()
    monkeypatch.setattr(decoding, "reader_of_process", lambda bootstrap: NodeReader())
    task = SourceTask(task_config(PIPELINE_OF_NODES, "nowhere", (0,), ledger_url=url))
    row, rejected, records = a_slice(1, offsets={"s": {0: 3}}, watermark_ms=None), {}, 0
    for first, end in pairwise(cuts):
        piece = Piece.of_slice(row, OffsetRange("s", 0, first, end))
        blobs = [blob for batch in task.read([piece], is_new=True, work=None) for blob in batch.to_pylist()]
        facts = decode_facts(next(one["blob"] for one in blobs if one["kind"] == FACTS))
        row = replace(row, sessions=sessions_after(row, facts))
        rejected |= facts.rejected
        records += facts.records
    assert (records, rejected) == (2, {})
