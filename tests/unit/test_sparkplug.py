"""Messages of Sparkplug B become rows: the specification's examples, what births declare for data, and what is rejected."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import InvalidDocument
from strandline.core.record_headers import HEADER_REPLAY_OF, pack_header_values
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.format import format_of
from strandline.processing.formats.record_fields import Rejection
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.formats.sparkplug import sessions
from strandline.processing.formats.sparkplug.messages import MessageReader
from strandline.processing.formats.sparkplug.sessions import NODE, Birth, Sessions, unpack
from strandline.processing.pipelines.event_time import EventTimeSource
from strandline.processing.source import kept_sessions
from strandline.processing.source.kept_sessions import SessionCache
from tests.support.sparkplug import metric, payload, topic

TIME = 1_486_144_502_122
NBIRTH = payload(
    metric("bdSeq", 0, "Int64", time=TIME),
    metric("Node Control/Rebirth", False, "Boolean", time=TIME),
    metric("Node Control/Scan Rate", 3000, "Int64", time=TIME),
    metric("Properties/Hardware Make", "Raspberry Pi", "String", time=TIME),
    metric("Supply Voltage", 12.1, "Float", alias=7, time=TIME),
    seq=0,
    time=TIME,
)
"""The specification's, shortened, with an alias."""
DBIRTH = payload(
    metric("Inputs/A", False, "Boolean", alias=20, time=TIME),
    metric("Inputs/C", False, "Boolean", alias=21, time=TIME),
    metric("Count", -3, "Int16", alias=22),
    seq=1,
    time=TIME,
)


def rows(reader: MessageReader, kind: str, value: bytes, device: str = "", *, again: bool = False) -> list[Any]:
    """The rows as objects; of what is rejected, the reason and the sentence."""
    source = topic(kind, "Raspberry Pi", device, "Sparkplug B Devices")
    found = reader.rows(value, pack_header_values(source, {HEADER_REPLAY_OF: b"s/0/1"}) if again else source)
    return [said(found)] if isinstance(found, Rejection) else [said(row) for row in found]


def said(row: bytes | Rejection) -> Any:
    return (row.reason, row.message) if isinstance(row, Rejection) else json.loads(row)


def born() -> MessageReader:
    reader = MessageReader(Sessions())
    rows(reader, "NBIRTH", NBIRTH)
    rows(reader, "DBIRTH", DBIRTH, "Pibrella")
    return reader


def values(found: Sequence[Any]) -> dict[str, Any]:
    return {one["metric"]: next((one[name] for name in one if name.startswith("value_")), None) for one in found}


def test_the_specifications_messages_in_their_order() -> None:
    reader = MessageReader(Sessions())
    birth = rows(reader, "NBIRTH", NBIRTH)
    assert birth[0] == {
        "group": "Sparkplug B Devices",
        "node": "Raspberry Pi",
        "message": "NBIRTH",
        "seq": 0,
        "metric": "bdSeq",
        "datatype": "Int64",
        "is_null": False,
        "is_stale": False,
        "is_historical": False,
        "is_transient": False,
        "value_long": 0,
        "value_double": 0.0,
        "time": TIME,
    }
    assert values(birth) == {
        "bdSeq": 0,
        "Node Control/Rebirth": False,
        "Node Control/Scan Rate": 3000,
        "Properties/Hardware Make": "Raspberry Pi",
        "Supply Voltage": pytest.approx(12.1),
    }
    assert {one["device"] for one in rows(reader, "DBIRTH", DBIRTH, "Pibrella")} == {"Pibrella"}
    data = payload(metric("Supply Voltage", 12.3, "Float", time=TIME), seq=2, time=TIME)
    assert values(rows(reader, "NDATA", data)) == {"Supply Voltage": pytest.approx(12.3)}
    inputs = metric("Inputs/A", True, "Boolean", time=TIME), metric("Inputs/C", True, "Boolean", time=TIME)
    assert values(rows(reader, "DDATA", payload(*inputs, seq=3, time=TIME), "Pibrella")) == {
        "Inputs/A": True,
        "Inputs/C": True,
    }
    death = rows(reader, "DDEATH", payload(seq=4, time=TIME + 1), "Pibrella")
    assert [(one["metric"], one["is_stale"], one["is_null"], one["time"]) for one in death] == [
        (name, True, True, TIME + 1) for name in ("Inputs/A", "Inputs/C", "Count")
    ]
    gone = rows(reader, "NDEATH", payload(metric("bdSeq", 0, "UInt64"), time=TIME))
    assert [one["metric"] for one in gone] == [one["metric"] for one in birth]
    assert not any("time" in one for one in gone), "its time is that of the connection"


def test_an_alias_and_a_datatype_are_those_of_the_birth() -> None:
    reader = born()
    data = payload(
        metric(alias=22, value=-300, kind="Int16"), metric(alias=20, value=True, kind="Boolean"), seq=2, time=9
    )
    found = rows(reader, "DDATA", data, "Pibrella")
    assert [(one["metric"], one["alias"], one["datatype"], one["time"]) for one in found] == [
        ("Count", 22, "Int16", 9),
        ("Inputs/A", 20, "Boolean", 9),
    ]
    assert values(found) == {"Count": -300, "Inputs/A": True}
    # An alias is the device's: the node has others. A bad metric costs its neighbours nothing.
    mixed = payload(metric(alias=22, value=1, kind="Int16"), metric(alias=7, value=1.5, kind="Float"), seq=3)
    assert rows(reader, "NDATA", mixed)[0] == ("schema", "alias 22 is not declared by the birth before it")
    assert rows(reader, "NDATA", payload(metric(alias=7, value=2.5, kind="Float"), seq=4))[0]["value_double"] == 2.5


@pytest.mark.parametrize(
    ("datatype", "value", "members"),
    [
        ("Int8", -23, {"value_long": -23, "value_double": -23.0}),
        ("Int32", -(2**31), {"value_long": -(2**31), "value_double": -(2.0**31)}),
        ("Int64", -(2**63), {"value_long": -(2**63), "value_double": -(2.0**63)}),
        ("UInt64", 2**64 - 1, {"value_long": 2**64 - 1, "value_double": 2.0**64}),
        ("Double", 1.5, {"value_double": 1.5}),
        ("Double", float("nan"), {}),
        ("Boolean", True, {"value_boolean": True}),
        ("Text", "ä", {"value_string": "ä"}),
        ("DateTime", TIME, {"value_long": TIME}),
        ("Bytes", b"\x00\xff", {"value_string": "AP8="}),
        ("Int8Array", bytes.fromhex("E97B"), {"value_json": "[-23,123]"}),
        ("Int16Array", bytes.fromhex("D08A3075"), {"value_json": "[-30000,30000]"}),
        ("Int32Array", bytes.fromhex("FFFFFFFFFAAFCB12"), {"value_json": "[-1,315338746]"}),
        (
            "Int64Array",
            bytes.fromhex("CE0672AC189CBAC4C4BA9C18AC7206CE"),
            {"value_json": "[-4270929666821191986,-3601064768563266876]"},
        ),
        ("UInt8Array", bytes.fromhex("17FA"), {"value_json": "[23,250]"}),
        ("UInt16Array", bytes.fromhex("1E0088CC"), {"value_json": "[30,52360]"}),
        ("UInt32Array", bytes.fromhex("3400000049FB55C4"), {"value_json": "[52,3293969225]"}),
        ("UInt64Array", bytes.fromhex("3400000000000000D99E02D1B27637E4"), {"value_json": "[52,16444743074749521625]"}),
        ("BooleanArray", bytes.fromhex("0C00000034D0"), {
            "value_json": "[false,false,true,true,false,true,false,false,true,true,false,true]"
        }),
        ("StringArray", b"ABC\0hello\0", {"value_json": '["ABC","hello"]'}),
        ("DateTimeArray", bytes.fromhex("C7D0907524010000B8BAB89781010000"), {"value_json": "[1256102875335,1656107875000]"}),
    ],
)  # fmt: skip
def test_values_by_their_datatypes(datatype: str, value: Any, members: dict[str, Any]) -> None:
    """The arrays are the specification's examples, with its errors corrected.

    It writes -23 as EF, which is -17, cuts moments to six bytes, and has floats in the other byte order than it says.
    """
    (row,) = rows(MessageReader(Sessions()), "NCMD", payload(metric("m", value, datatype)))
    assert {name: one for name, one in row.items() if name.startswith("value_")} == members
    assert row["is_null"] is (not members)


def test_a_data_set_and_a_template_are_json() -> None:
    # columns ["a"], types [Int32], one row with 5
    data_set = bytes.fromhex("0801120161180322040a020805")
    (row,) = rows(MessageReader(Sessions()), "NCMD", payload(metric("m", data_set, "DataSet")))
    assert json.loads(row["value_json"]) == {
        "num_of_columns": "1",
        "columns": ["a"],
        "types": [3],
        "rows": [{"elements": [{"int_value": 5}]}],
    }
    template = b"\x12" + bytes([len(inner := metric("x", 1, "Int32"))]) + inner
    (row,) = rows(MessageReader(Sessions()), "NCMD", payload(metric("m", template, "Template")))
    assert json.loads(row["value_json"])["metrics"][0]["name"] == "x"


@pytest.mark.guarantee(
    "G373",
    "A Sparkplug message without a birth before it, or out of sequence, is one dead letter. An undeclared metric is a "
    "dead letter alone, and affects no other metric. Requeueing either one doesn't change how other messages are "
    "read.",
    promise="each-rejected-record-is-one-dead-letter",
)
def test_what_has_no_birth_before_it_or_does_not_follow_is_rejected_whole() -> None:
    data = payload(metric("Supply Voltage", 1.0, "Float"), seq=1)
    fresh = MessageReader(Sessions())
    for kind, device in (("NDATA", ""), ("DDATA", "d"), ("DDEATH", "d"), ("DBIRTH", "d"), ("NDEATH", "")):
        ((reason, sentence),) = rows(fresh, kind, data, device)
        assert reason == "schema" and ("before it" in sentence), sentence
    assert not fresh.sessions.nodes
    reader = born()
    ((reason, sentence),) = rows(reader, "DDATA", payload(seq=2), "Other")
    assert (reason, sentence) == ("schema", "its device has no birth before it, or has died since: ask for a rebirth")
    ((_, sentence),) = rows(reader, "NDATA", payload(seq=5))
    assert sentence == "seq 5 does not follow 2: 2 before it are missing, or come later"
    ((_, sentence),) = rows(reader, "NDATA", payload(seq=5))
    assert sentence == "seq 5 does not follow 5: it came before"
    assert (
        rows(reader, "NDATA", payload(metric(alias=7, value=1.0, kind="Float"), seq=6))[0]["metric"] == "Supply Voltage"
    )
    ((_, sentence),) = rows(reader, "NDATA", payload())
    assert sentence.startswith("it has no seq")
    ((_, sentence),) = rows(reader, "NDEATH", payload(metric("bdSeq", 9, "UInt64")))
    assert sentence == "the death of another session: its bdSeq is 9, and that of the birth 0"
    assert rows(reader, "NDEATH", payload(metric("bdSeq", 0, "UInt64")))[0]["is_stale"]
    ((_, sentence),) = rows(reader, "NDATA", payload(seq=7))
    assert sentence.startswith("its node has no birth before it, or has died since")
    rows(reader, "NBIRTH", NBIRTH)
    assert rows(reader, "DDATA", payload(seq=1), "Pibrella")[0][0] == "schema", "its device has a new birth"


def test_a_sequence_runs_over_and_a_missing_birth_of_a_device_counts_in_it() -> None:
    reader = born()
    for number in range(2, 600):
        data = payload(metric(alias=7, value=1.0, kind="Float"), seq=number % 256)
        assert rows(reader, "NDATA", data)[0]["seq"] == number % 256
    found = rows(reader, "DDEATH", payload(seq=99), "Pibrella")
    assert found[0][0] == "schema" and "Pibrella" not in next(iter(reader.sessions.nodes.values())).alive


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (b"\x0f\xff", "not a payload of Sparkplug B"),
        (None, "no value"),
        (payload(metric("a", 1, "Int32"), metric("a", 1, "Int32"), seq=0), "declares metric 'a' twice"),
        (payload(metric("a", 1, "Int32", alias=1), metric("b", 1, "Int32", alias=1), seq=0), "declares alias 1 twice"),
        (payload(metric(value=1, kind="Int32"), seq=0), "neither name nor alias"),
        (payload(metric("a", 1, kind="Int32"), seq=0), "neither it nor the birth before it has its datatype"),
        (payload(metric("a", datatype="Int32"), seq=0), "it has no int_value or long_value, which Int32 needs"),
        (payload(metric("a", 300, "UInt8"), seq=0), "300 is no UInt8"),
        (payload(metric("a", b"\x01", "Int16Array"), seq=0), "not a multiple of the element size"),
        (payload(metric("a", b"\x01", "BooleanArray"), seq=0), "its bytes are not a BooleanArray"),
        (b'{"points":[1', "not JSON"),
    ],
)
def test_what_is_broken_is_rejected_with_a_sentence(value: bytes | None, sentence: str) -> None:
    (found,) = rows(MessageReader(Sessions()), "NBIRTH", value)  # type: ignore[arg-type]
    assert found[0] in ("decode", "schema") and sentence in found[1]


@pytest.mark.parametrize(
    "source",
    [
        None,
        b"http:127.0.0.1",
        b"mqtt:spBv1.0/STATE/host",
        b"mqtt:spAv1.0/g/NDATA/n",
        b"mqtt:spBv1.0/g/NDATA/n/d",
        b"mqtt:spBv1.0/g/DDATA/n",
        b"mqtt:spBv1.0//NDATA/n",
        b"mqtt:spBv1.0/g/NSOMETHING/n",
    ],
)
def test_only_a_topic_says_whose_message_it_is(source: bytes | None) -> None:
    found = MessageReader(Sessions()).rows(NBIRTH, source)
    assert isinstance(found, Rejection) and found.reason == "schema"


@pytest.mark.guarantee(
    "G372",
    "A Sparkplug message is read with the births before it in its partition, wherever a replay, an audit, or a "
    "backfill begins. Each slice records the declarations, and another birth adds little to them, however many births "
    "there are.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
def test_the_state_in_a_text_is_the_state() -> None:
    """Read on from any place, the rest of the messages gives the same rows and the same state."""
    chance = random.Random(3)
    messages = [(kind, value, device) for kind, value, device, _ in some_messages(chance, 400)]
    reader = MessageReader(Sessions())
    texts: dict[str, str] = {}
    packed, found = [], []
    for kind, value, device in messages:
        packed.append(reader.sessions.packed())
        texts |= reader.sessions.contents()
        found.append(rows(reader, kind, value, device))
    assert sum(isinstance(row, dict) for of_one in found for row in of_one) > 300
    for place in range(0, 400, 7):
        again = MessageReader(unpack(packed[place], lambda hashes: {one: texts[one] for one in hashes}, {}))
        assert again.sessions.packed() == packed[place]
        assert [rows(again, *one) for one in messages[place:]] == found[place:]
        assert again.sessions.packed() == reader.sessions.packed()
    births = sum(kind.endswith("BIRTH") for kind, _, _ in messages)
    assert len(texts) <= 2 * births + 1, "data changes no text"


@pytest.mark.guarantee("G372")
def test_births_one_after_the_other_keep_little_for_each() -> None:
    """Devices are commissioned over weeks, of one edge node and as nodes of their own: each is seen by a slice of its own."""
    kept, texts = Sessions(), dict[str, str]()
    kept.begin_node(("plant", "gateway"), Birth((("m", 1, 3),)), 0, 0)
    for number in range(500):
        kept.begin_device(("plant", "gateway"), f"pump {number:04d}", Birth((("m", number, 3),)))
        texts |= kept.contents()
        kept.begin_node(("plant", f"meter {number:04d}"), Birth((("n", number, 3),)), 0, 0)
        texts |= kept.contents()
    assert sum(map(len, texts.values())) < 4_000_000
    again = unpack(kept.packed(), lambda hashes: {one: texts[one] for one in hashes}, {})
    assert again.nodes == kept.nodes
    one, other = Sessions(dict(reversed(kept.nodes.items()))), again
    assert one.packed() == other.packed(), "in whatever order they were born"


def test_a_process_reads_what_others_have_kept_however_little_of_it_stays_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    Ledger.migrate(url)
    writer, reader = (SessionCache(lambda: Ledger.open(url)) for _ in range(2))
    monkeypatch.setattr(kept_sessions, "CHARACTERS_MAX", 20_000)
    kept = Sessions()
    for number in range(160):
        kept.begin_node(("plant", f"meter {number:04d}"), Birth((("m", number, 3),)), 0, 0)
        if number > 100:
            writer.keep([kept])
            assert reader.unpack(format_of("sparkplug"), kept.packed()).nodes == kept.nodes


def some_messages(chance: random.Random, count: int) -> Any:
    seq = 0
    for _ in range(count):
        kind = chance.choice(["NDATA"] * 6 + ["DDATA"] * 6 + ["NBIRTH", "DBIRTH", "DBIRTH", "DDEATH", "NDEATH"])
        seq = 0 if kind == "NBIRTH" else seq + (0 if kind == "NDEATH" else 1 if chance.random() < 0.95 else 3)
        device = chance.choice(["d1", "d2"]) if kind.startswith("D") else ""
        aliases = chance.sample(range(10), 4)
        metrics = [metric(f"m{one}", one, "Int32", alias=one) for one in aliases]
        if kind.endswith("DATA"):
            metrics = [metric(alias=one, value=one, kind="Int32") for one in aliases]
        if kind == "NBIRTH":
            metrics.append(metric("bdSeq", 0, "UInt64"))
        value = payload(*([metric("bdSeq", 0, "UInt64")] if kind == "NDEATH" else metrics), seq=seq % 256)
        yield kind, value, device, seq


@pytest.mark.guarantee("G373")
def test_what_is_put_back_neither_needs_a_place_nor_takes_one() -> None:
    reader = born()
    before = reader.sessions.packed()
    data = payload(metric(alias=7, value=1.5, kind="Float"), seq=77)
    assert rows(reader, "NDATA", data, again=True)[0]["metric"] == "Supply Voltage"
    assert rows(reader, "NDEATH", payload(metric("bdSeq", 0, "UInt64")), again=True)[0]["is_stale"]
    assert rows(reader, "NBIRTH", payload(metric("x", 1, "Int32"), seq=0), again=True)[0]["metric"] == "x"
    assert reader.sessions.packed() == before


def test_the_dead_make_room_and_without_room_a_birth_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "BIRTHS_MAX", 3)
    kept = Sessions()
    birth = Birth((("m", 1, 3),))
    for name in "abc":
        kept.begin_node(("g", name), birth, 0, 0)
    with pytest.raises(sessions.TooManyBirthsError, match="give the stream more partitions"):
        kept.begin_node(("g", "d"), birth, 0, 0)
    kept.begin_node(("g", "a"), birth, 0, 1)  # born again
    kept.end_node(("g", "b"))
    kept.begin_node(("g", "d"), birth, 0, 0)
    assert sorted(kept.nodes) == [("g", "a"), ("g", "c"), ("g", "d")]
    reader = MessageReader(kept)
    ((reason, sentence),) = rows(reader, "NBIRTH", NBIRTH)
    assert reason == "schema" and "3 births" in sentence


def test_the_dead_devices_of_the_node_itself_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "BIRTHS_MAX", 3)
    reader = MessageReader(Sessions())
    rows(reader, "NBIRTH", NBIRTH)
    for at in range(4):
        birth = payload(metric("x", at, "Int32"), seq=2 * at + 1)
        assert values(rows(reader, "DBIRTH", birth, f"device {at}")) == {"x": at}
        assert rows(reader, "DDEATH", payload(seq=2 * at + 2), f"device {at}")[0]["is_stale"]
    (node,) = reader.sessions.nodes.values()
    assert (sorted(node.births), node.seq) == ([NODE, "device 2", "device 3"], 8)
    monkeypatch.setattr(sessions, "METRICS_MAX", len(node.births[NODE].metrics) + 2)
    two = payload(metric("x", 1, "Int32"), metric("y", 2, "Int32"), seq=9)
    assert values(rows(reader, "DBIRTH", two, "device 3")) == {"x": 1, "y": 2}
    assert sorted(node.births) == [NODE, "device 3"]
    monkeypatch.undo()
    monkeypatch.setattr(sessions, "BIRTHS_MAX", 3)
    assert values(rows(reader, "DBIRTH", payload(metric("x", 1, "Int32"), seq=10), "device 4")) == {"x": 1}
    ((_, sentence),) = rows(reader, "DBIRTH", payload(metric("x", 1, "Int32"), seq=11), "device 5")
    assert "has 3 births" in sentence


STREAM = {
    "stream": "s",
    "format": "sparkplug",
    "partitions": 4,
    "key": "node",
    "mqtt": {"topics": ["spBv1.0/+/+/+", "spBv1.0/+/+/+/+"], "fields": {"node": 3}},
    "schema": {"node": "string", "metric": "string", "value": {"type": "double", "from": "$.value_double"}},
}


@pytest.mark.guarantee("G373")
def test_each_row_has_a_dead_letter_of_its_own_that_repeats_no_other() -> None:
    stream = StreamSpec.from_document(STREAM)
    record = record_format(stream)
    reader = RowReader(record)
    birth = payload(metric("a", 1, "Int32", alias=1), metric("b", "text", "String", alias=2), seq=0, time=TIME)
    data = payload(metric(alias=1, value=5, kind="Int32"), metric(alias=9, value=6, kind="Int32"), seq=1)
    records = [birth, data + b"\x2a\x04body", b"\xff"]
    sources = [topic("NBIRTH"), topic("NDATA"), topic("NDATA")]
    (found,) = reader.parts(records, sources)
    assert (found.places, found.elements) == ([0, 0, 1, 1, 2], [0, 1, 0, 1, None])
    decoded = Decoder(record.fields, EventTimeSource(None), list(stream.fields)).decode(found.texts, [1] * 5, None)
    assert decoded.arrays["value"].to_pylist() == [1.0, 5.0]
    assert [(one.index, one.reason) for one in decoded.rejects] == [(1, "schema"), (3, "schema"), (4, "decode")]
    letters = [reader.dead_letter_value(records, found, at) for at in (1, 3, 4)]
    assert letters[2] == b"\xff"
    assert json.loads(letters[0] or b"")["points"][0]["value_string"] == "text"
    again = RowReader(record)
    (back,) = again.parts(letters[:1], [topic("NBIRTH")])
    assert json.loads(back.texts[0])["metric"] == "b" and again.sessions is not None and not again.sessions.nodes  # type: ignore[arg-type]
    # The metric with an undeclared alias is the payload with only this metric, without a body.
    assert letters[1] == payload(metric(alias=9, value=6, kind="Int32"), seq=1)


def test_messages_of_a_node_must_come_to_one_partition() -> None:
    for wrong in ({"key": None}, {"mqtt": None}, {"mqtt": {"topics": ["a/+/+/+"], "fields": {"node": 1}}}):
        with pytest.raises(InvalidDocument, match="must be in one partition"):
            StreamSpec.from_document({name: one for name, one in (STREAM | wrong).items() if one is not None})
    single = {name: one for name, one in STREAM.items() if name != "key"} | {"partitions": 1}
    assert StreamSpec.from_document(single).format == "sparkplug"
