"""Changes of a stream's document while a job reads it, and when the job uses the change.

Real ledger, made-up topics.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.core.errors import Conflict
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import EventTimeRule, SliceStatus
from strandline.log.reader import OffsetRange
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.formats.record_rows import record_format
from strandline.processing.pipelines.schema_changes import is_widening, refused_changes
from strandline.processing.pipelines.stored import load_pipeline, streams_of_run
from strandline.processing.slices.effective_schema import EffectiveSchema
from strandline.processing.slices.planner import InputStream, PlannerSettings, SlicePlanner
from strandline.processing.source.decoding import conforming_decoder, decoding_of
from strandline.processing.source.source_config import Piece
from strandline.processing.source.stream_formats import StreamFormats
from strandline.services.jobs.apply_documents import DocumentApplier
from tests.support.control import Topics
from tests.support.growing_log import GrowingLog
from tests.support.ledgers import a_checkpoint, a_slice

SCHEMA: dict[str, Any] = {
    "device": "string",
    "ts": {"type": "timestamp", "unit": "ms"},
    "power": "integer",
    "level": {"type": "integer", "max": 9},
    "unused": "string",
}
PIPELINE = """
pipeline: j
input: {stream: s}
event_time: {field: ts, delay: 1s}
steps:
  - where: level < 5
  - window: {name: w, tumbling: 10s, by: [device], aggregate: {n: count(*), total: sum(power), peak: max(power)}}
    emit: [{elasticsearch: w}]
"""


def stream(schema: dict[str, Any] | None = None, **parts: Any) -> StreamSpec:
    return StreamSpec.from_document({"stream": "s", "schema": SCHEMA | (schema or {}), **parts})


def without(*names: str) -> dict[str, Any]:
    return {name: one for name, one in SCHEMA.items() if name not in names}


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("integer", "long", -(2**31)),
        ("integer", "double", 2**31 - 1),
        ("long", "double", 2**53),
        ("integer", "decimal(12,2)", 2**31 - 1),
        ("long", "decimal(19,0)", -(2**63)),
        ("long", "decimal(38,19)", 2**63 - 1),
        ("decimal(5,2)", "decimal(6,3)", Decimal("-999.99")),
    ],
)
def test_a_wider_type_holds_each_value_exactly(old: str, new: str, value: Any) -> None:
    assert is_widening(old, new)
    assert pa.array([value], arrow_type(old)).cast(arrow_type(new))[0].as_py() == value


@pytest.mark.guarantee("G262")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("long", "integer"),
        ("integer", "decimal(11,2)"),
        ("long", "decimal(18,0)"),
        ("decimal(5,2)", "decimal(5,3)"),
        ("decimal(5,2)", "decimal(4,2)"),
        ("decimal(5,2)", "double"),
        ("double", "decimal(38,10)"),
        ("integer", "string"),
        ("timestamp", "long"),
    ],
)
def test_a_type_that_does_not_hold_every_value_is_none(old: str, new: str) -> None:
    assert not is_widening(old, new)


@pytest.mark.parametrize(
    "new",
    [
        stream({"wind": "double?"}),
        stream({"power": "decimal(12,1)"}),
        stream({"level": {"type": "integer", "min": 3}}),
        stream({"level": {"type": "integer", "max": 9, "text": True, "required": False}}),
        stream({"ts": {"type": "timestamp", "unit": "s", "from": "$.at"}}),
        stream(mqtt={"topics": ["a/+"], "fields": {"device": 1}}, retention="30d"),
        StreamSpec.from_document({"stream": "s", "schema": without("unused")}),
    ],
)
def test_what_can_be_applied_while_jobs_read(new: StreamSpec) -> None:
    assert refused_changes([stream()], new) == []


@pytest.mark.guarantee(
    "G262",
    "A change of a stream that a job couldn't process is refused before anything changes, with the reason and an "
    "alternative: narrower types, used fields, keys, formats.",
    promise="unusable-documents-are-refused",
)
@pytest.mark.parametrize(
    ("new", "why"),
    [
        (stream({"level": {"type": "double", "max": 9}, "power": "string"}), "power from integer to string.*power_2"),
        (stream({"wind": "double"}), "wind is new and required.*double[?]"),
        (stream(key="device"), "key from None to device"),
        (stream(format="msgpack"), "format from json to msgpack"),
        (stream(explode="$.a"), "explode from none to"),
    ],
)
def test_what_can_not_says_why_and_how_else(new: StreamSpec, why: str) -> None:
    (sentence,) = refused_changes([stream()], new)
    assert re.search(why, sentence), sentence


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ({"level": "x-level"}, {}, "http.headers.level was removed.*only in their headers; keep it"),
        ({"device": "x-device"}, {"device": "x-id"}, "http.headers.device: another key.*two partitions"),
        ({}, {"device": "x-id"}, None),
        ({"device": "x-device"}, {}, "http.headers.device was removed"),
        ({"level": "x-level", "device": "x-device"}, {"level": "x-steps", "device": "X-Device"}, None),
        ({}, {"level": "x-level"}, None),
    ],
)
def test_a_header_that_fills_a_field_stays(before: dict[str, str], after: dict[str, str], why: str | None) -> None:
    old, new = (stream(key="device", http={"headers": headers}) for headers in (before, after))
    found = refused_changes([old], new)
    assert not found if why is None else re.search(why, *found)


def test_a_level_of_the_topic_that_becomes_the_key_is_refused() -> None:
    """The level is before the key in the record; a header is not."""
    old, new = (
        stream(key="device", mqtt={"topics": ["a/+"], "fields": fields}, http={"headers": {"device": "x-device"}})
        for fields in ({}, {"device": 1})
    )
    (sentence,) = refused_changes([old], new)
    assert re.search("mqtt.fields.device: another key.*two partitions", sentence)


def test_a_line_of_csv_and_a_bare_value_stay_what_they_are() -> None:
    csv, value = (
        stream(format="csv"),
        StreamSpec.from_document({"stream": "s", "format": "value", "schema": {"v": "long"}}),
    )
    assert "columns of csv" in refused_changes([csv], stream({"wind": "double?"}, format="csv"))[0]
    more = StreamSpec.from_document({"stream": "s", "format": "value", "schema": {"v": "long", "w": "long?"}})
    assert "mark this field" in refused_changes([value], more)[0]


def test_a_name_that_comes_back_must_hold_what_it_held() -> None:
    """Slices of the oldest version are replayed, too."""
    gone = StreamSpec.from_document({"stream": "s", "schema": without("unused")})
    (sentence,) = refused_changes([stream(), gone], stream({"unused": "long?"}))
    assert "unused from string to long" in sentence


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite")
    apply(opened, stream(), PIPELINE)
    yield opened
    opened.close()


def apply(ledger: Ledger, document: StreamSpec, more: str = "") -> list[Any]:
    import yaml

    applier = DocumentApplier(ledger, Topics(ledger), lambda pipeline: None, lambda topic: {0: 0, 1: 0})  # type: ignore[arg-type]
    return applier.apply(f"{yaml.safe_dump(document.as_document(), sort_keys=False)}---\n{more}".encode(), "a.yaml")


@pytest.mark.parametrize(
    ("new", "note", "goes_on"),
    [
        (stream({"wind": "double?"}), "uses this version from its next slice", True),
        (stream({"level": "integer"}), "uses this version from its next slice", True),
        (stream({"level": "long"}), "recomputes its open windows", False),
    ],
)
def test_a_change_counts_from_the_next_slice_on_unless_the_pipeline_computes_otherwise(
    ledger: Ledger, new: StreamSpec, note: str, goes_on: bool
) -> None:
    schema = EffectiveSchema(ledger, "j", 1, {"s": 1})
    assert (schema.versions(ledger.current_versions(["s"])), schema.needs_another_run()) == ({"s": 1}, False)
    (applied, *_) = apply(ledger, new)
    assert (applied.outcome, applied.version) == ("changed", 2)
    assert note in applied.notes[0]
    assert (schema.versions(ledger.current_versions(["s"])), schema.needs_another_run()) == (
        ({"s": 2}, False) if goes_on else (None, True)
    )
    assert EffectiveSchema(ledger, "j", 1, {"s": 2}).versions({"s": 2, "other": 7}) == {"s": 2}


@pytest.mark.guarantee("G262")
@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (
            without("level"),
            "job j reads it, and its steps.* unknown column 'level'.*apply the stream together with a pipeline that fits",
        ),
        (SCHEMA | {"power": "long"}, "field peak in elasticsearch w from integer to long"),
        (SCHEMA | {"ts": {"type": "timestamp", "required": False}}, "'ts' is optional"),
    ],
)
def test_what_a_job_can_not_take_is_refused_and_nothing_is_changed(ledger: Ledger, schema: Any, why: str) -> None:
    with pytest.raises(Conflict, match=f"(?s){why}"):
        apply(ledger, StreamSpec.from_document({"stream": "s", "schema": schema}))
    assert ledger.stream_version("s") == 1


def test_a_field_may_go_together_with_the_pipeline_that_used_it(ledger: Ledger) -> None:
    schema = EffectiveSchema(ledger, "j", 1, {"s": 1})
    gone = StreamSpec.from_document({"stream": "s", "schema": without("level")})
    apply(ledger, gone, PIPELINE.replace("level < 5", "power < 5"))
    assert (schema.versions(ledger.current_versions(["s"])), schema.needs_another_run()) == (None, False), (
        "the new version of the job ends the run"
    )
    assert load_pipeline(ledger, "j", 2).inputs[0].columns_needed == ("device", "ts", "power")


@pytest.mark.guarantee(
    "G263",
    "If several clients apply a stream's document concurrently, one of them gets the next version.",
    promise="unusable-documents-are-refused",
)
def test_of_two_applications_at_once_one_becomes_the_next_version(ledger: Ledger) -> None:
    """Both were checked against version 1."""
    documents = [stream({name: "double?"}).as_document() for name in ("a", "b", "c", "d")]
    outcomes: list[Any] = []

    def put(document: dict[str, Any]) -> None:
        try:
            outcomes.append(ledger.put_stream("s", document, base=1).version)
        except Conflict as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=put, args=(document,)) for document in documents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(2) == 1
    assert sum("has just got version 2" in str(one) for one in outcomes) == 3
    assert list(ledger.stream_documents("s")) == [1, 2]
    assert ledger.put_stream("s", ledger.stream("s").document, base=1).version == 2, (
        "a lost answer may be asked for again"
    )


@pytest.mark.guarantee("G261")
def test_a_run_is_compiled_by_the_version_of_the_slice_that_it_finishes(ledger: Ledger) -> None:
    run = ledger.begin_run("j", 1)
    assert streams_of_run(ledger, run) == {"s": 1}
    ledger.set_run_streams("j", run.epoch, {"s": 1})
    offsets = {"s": {0: 10, 1: 20}}
    planned = a_slice(1, run.epoch, "j", offsets_first={"s": {0: 0, 1: 0}}, offsets=offsets, stream_versions={"s": 1})
    ledger.plan_slice(planned)
    apply(ledger, stream({"level": "long"}))
    run = ledger.begin_run("j", 1)
    assert streams_of_run(ledger, run) == {"s": 1}
    ledger.set_run_streams("j", run.epoch, {"s": 1})
    ledger.commit_checkpoint(a_checkpoint(1, run.epoch, "j"))
    run = ledger.begin_run("j", 1)
    assert streams_of_run(ledger, run) == {"s": 2}
    ledger.set_run_streams("j", run.epoch, {"s": 2})
    again = a_slice(2, run.epoch, "j", offsets_first=offsets, offsets=offsets, stream_versions={"s": 2})
    ledger.plan_slice(again)
    ledger.commit_checkpoint(a_checkpoint(2, run.epoch, "j"))
    assert [row[1:] for row in ledger.compiled_changes("j", 2)] == [(1, {"s": 1}), (1, {"s": 2})]
    assert ledger.slices("j", 1, 2)[0].status is SliceStatus.COMMITTED


@pytest.mark.guarantee(
    "G261",
    "A stream's document can change while jobs read it. Each record is decoded by the version that was effective when "
    "its slice was planned, in every replay, audit, and backfill. Records that arrive after apply has answered use "
    "the new version or a later one.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
def test_a_slice_is_decoded_by_its_own_version_into_the_columns_of_the_run(ledger: Ledger) -> None:
    """The older version refuses what the newer takes, and its columns come as the newer ones."""
    apply(ledger, stream({"level": "decimal(12,1)", "wind": "double?"}))
    text = PIPELINE.replace("level < 5", "level < 5 and coalesce(wind, 0) < 3")
    apply(ledger, stream({"level": "decimal(12,1)", "wind": "double?"}), text)
    pipeline = load_pipeline(ledger, "j", 2, {"s": 2})
    (config,) = decoding_of(pipeline, "nowhere").inputs
    formats = StreamFormats(ledger, {"s": config.format})
    rows = [a_slice(number, stream_versions={"s": version}) for number, version in enumerate((2, 1, 1), 1)]
    new, old, other = (Piece.of_slice(row, OffsetRange("s", 0, 0, 1), formats).format for row in rows)
    assert new is None, "the run's own"
    assert old == record_format(stream())
    assert other is old, "what adjoins is fetched at once"
    assert old is not None
    values = [
        b'{"device": "d", "ts": 5, "power": 1, "level": %s, "unused": "", "wind": 1.5}' % level
        for level in (b"7", b"10", b"7.5")
    ]
    found = conforming_decoder(config, old)(values, [0, 0, 0], None, None)
    assert found.arrays["level"].type == pa.decimal128(12, 1)
    assert found.arrays["level"].to_pylist() == [Decimal("7.0")]
    assert found.arrays["wind"].to_pylist() == [None], "it was not declared then"
    assert [(one.index, one.reason) for one in found.rejects] == [(1, "schema"), (2, "schema")]
    assert list(found.arrays) == list(config.columns)


def test_a_record_that_comes_when_a_version_is_applied_is_decoded_by_it(ledger: Ledger) -> None:
    """The version is applied, and a record arrives, just when the planner reads the end of the log."""

    new = stream({"wind": "double?"})
    run = ledger.begin_run("j", 1)
    rule = EventTimeRule(delay_ms=1_000, idle_timeout_ms=None)
    settings = PlannerSettings("j", 1, run.epoch, (InputStream("s", stream_version=1),), 100, rule, ())
    index: Any = GrowingLog(lambda: apply(ledger, new))
    planner = SlicePlanner(settings, ledger, index, filling_ms=0)
    first = planner.next_slice()
    assert first is not None
    assert first.stream_versions == {"s": 1}
    ledger.commit_checkpoint(a_checkpoint(1, run.epoch, "j"))
    second = planner.next_slice()
    assert second is not None
    assert (second.offsets, second.stream_versions) == ({"s": {0: 10}}, {"s": 2})
    new = stream({"wind": "double?", "level": "long"})
    apply(ledger, new)
    ledger.commit_checkpoint(a_checkpoint(2, run.epoch, "j"))
    assert planner.next_slice() is None, "another run has to take the wider type"
    assert ledger.slice_count("j") == 2
