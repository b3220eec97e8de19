"""Records of every format at the desk.

The examples are compared with the recomputations of `test_formats.py`. Also files of binary records, schemas in
separate files and from a registry, and the metadata of a record.
"""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest

from strandline.core.documents import read_documents
from strandline.core.errors import InvalidDocument, InvalidSettings, PermanentError, RegistryUnavailable
from strandline.core.streams.stream import StreamSpec
from strandline.processing.desk.case_run import run_case
from strandline.processing.desk.cases import CaseSpec
from strandline.processing.desk.desk import Desk, DeskResult, LocalDeadLetter, Outcome
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.desk.record_files import read_records
from strandline.processing.desk.records import DeskRecords, partition_of_key
from strandline.processing.formats.record_rows import record_format
from tests.integration.test_formats import CASES, EXAMPLES, Case
from tests.support.messages import RegistryServer, avro_record, descriptor_text, message_class, numbered, proto_file
from tests.unit.test_command_line import Say, say
from tests.unit.test_telemetry import OTLP, protobuf, write_request

__all__ = ["say"]

BINARY = ("msgpack", "cbor", "avro", "protobuf")
METER = {
    "type": "record",
    "name": "Meter",
    "fields": [{"name": "id", "type": "string"}, {"name": "ts", "type": "long"}],
}
DOCUMENTS = """\
stream: meters
format: FORMAT
schema: {id: string, ts: {type: timestamp, unit: s}}
---
pipeline: meters
input: {stream: meters}
event_time: {field: ts, delay: 10s}
steps:
  - emit: [{elasticsearch: meter-records}]
"""


def documents_of(fields: str) -> str:
    return DOCUMENTS.replace("FORMAT", fields)


def records_of(case: Case) -> list[bytes]:
    """The records that the gateway makes of the case's requests."""
    found: list[bytes] = []
    for body in [*case.bodies, *case.broken]:
        if case.content_type == "application/json" and body.startswith(b"["):
            found += [json.dumps(one).encode() for one in json.loads(body)]
        else:
            found += body.split(b"\n") if case.content_type.startswith(("text/", "application/x-ndjson")) else [body]
    return found


def about(value: Any) -> Any:
    """A sum of doubles may be added in another order here."""
    return pytest.approx(value, rel=1e-12) if isinstance(value, float) else value


REQUESTS = ("otlp", "prometheus", "cloudevents")
"""Formats whose records are sent on separate routes and with headers, which no file of records has.

The first two are below.
"""


@pytest.mark.guarantee(
    "G366",
    "A local run reads records of every format as a job does, also if a record has no row.",
    promise="all-forms-of-a-pipeline-agree",
)
@pytest.mark.parametrize("name", [name for name in CASES if name not in REQUESTS])
def test_the_examples_of_formats_give_what_a_recomputation_gives(name: str, say: Say, tmp_path: Path) -> None:
    case = CASES[name]()
    records = records_of(case)
    if name in BINARY:
        file = tmp_path / "records.b64"
        file.write_bytes(b"\n".join(map(base64.b64encode, records)))
    else:
        file = tmp_path / "records"
        file.write_bytes(b"\n".join(records))
    said = say("pipeline", "run", str(EXAMPLES / f"{name}.yaml"), "--input", str(file), "--json")
    assert said.code == 0, said.err
    expected = {
        key: {field: about(value) for field, value in result.items() if value is not None}
        for key, result in case.expected.items()
    }
    fields = ("n", *next(iter(case.expected.values())))
    found = {}
    for line in said.out.splitlines():
        one = json.loads(line)
        result = {field: value for field, value in one.items() if field in fields and value is not None}
        found[one[case.key], one["@timestamp"]] = result
    assert found == expected
    assert sorted(json.loads(line)["reason"] for line in said.err.splitlines()) == case.letters


def test_an_avro_file_holds_the_records_that_would_be_sent(tmp_path: Path, say: Say) -> None:
    case = CASES["avro"]()
    stream, _ = read_documents((EXAMPLES / "avro.yaml").read_bytes(), "avro.yaml")
    config = record_format(StreamSpec.parse(stream))
    schema = fastavro.parse_schema(json.loads(config.options))
    sent = case.bodies[:20]
    rows = [fastavro.schemaless_reader(BytesIO(one), schema) for one in sent]
    with (tmp_path / "meters.avro").open("wb") as file:
        fastavro.writer(file, schema, rows, "deflate")
    assert [one for piece in read_records(tmp_path / "meters.avro", config) for one in piece] == sent
    (tmp_path / "b.avro").write_bytes(b"Obj\x01no")
    with pytest.raises(PermanentError, match="not an Avro file with records of the stream's schema"):
        list(read_records(tmp_path / "b.avro", config))


def test_a_binary_record_is_no_line_and_the_sentence_says_what_to_give(tmp_path: Path) -> None:
    for name in BINARY:
        stream, _ = read_documents((EXAMPLES / f"{name}.yaml").read_bytes(), name)
        config = record_format(StreamSpec.parse(stream))
        with pytest.raises(
            PermanentError, match=rf"format {name} is not a line of text; pass .* in base64 .*\(\.b64\)"
        ):
            list(read_records(tmp_path / "records.dat", config))
    (tmp_path / "a.b64").write_bytes(b"aGk=\nno base64\n")
    with pytest.raises(PermanentError, match=r"a\.b64: line 2 is not base64"):
        list(read_records(tmp_path / "a.b64", config))
    raw = record_format(StreamSpec.from_document({"stream": "a", "format": "raw", "schema": {"x": "string"}}))
    with pytest.raises(PermanentError, match=r"\.avro means a file of Avro, but the stream's format is raw"):
        list(read_records(tmp_path / "a.avro", raw))


def test_schemas_beside_the_document_are_read(say: Say, tmp_path: Path) -> None:
    """By `run`, `explain` and `test`."""
    (tmp_path / "meter.avsc").write_text(json.dumps(METER))
    descriptors = descriptor_text(proto_file("p", Meter={"id": "string", "ts": "int64"}))
    (tmp_path / "meter.desc").write_bytes(base64.b64decode(descriptors))
    message = message_class(descriptors, "p.Meter")(id="a", ts=100).SerializeToString()
    for name, fields, record in (
        ("a.yaml", "avro\navro: {schema_file: meter.avsc}", avro_record(METER, {"id": "a", "ts": 100})),
        ("p.yaml", "protobuf\nprotobuf: {descriptor_file: meter.desc, message: p.Meter}", message),
    ):
        (tmp_path / name).write_text(documents_of(fields))
        (tmp_path / "r.b64").write_bytes(base64.b64encode(record))
        said = say("pipeline", "run", str(tmp_path / name), "--input", str(tmp_path / "r.b64"), "--json")
        assert json.loads(said.out)["id"] == "a", said.err
        assert say("pipeline", "explain", str(tmp_path / name)).code == 0
        test = {
            "test": "t",
            "file": name,
            "steps": [{"record": base64.b64encode(record).decode(), "base64": True}],
            "expect": {"results": [{"id": "a", "@timestamp": "1970-01-01T00:01:40Z"}]},
        }
        (tmp_path / "t.yaml").write_text(json.dumps(test))
        assert "t: ok" in say("pipeline", "test", str(tmp_path / "t.yaml")).out


def test_schemas_of_a_registry_are_asked_for_where_one_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = read_pipeline(documents_of("avro\navro: {registry: true}").encode(), "meters.yaml")
    monkeypatch.delenv("STRANDLINE_SCHEMA_REGISTRY_URL", raising=False)
    with pytest.raises(InvalidSettings, match="name their avro schemas in a schema registry, but none is set"):
        Desk(pipeline)
    registry = RegistryServer()
    try:
        registry.schemas[7, ""] = {"schema": json.dumps(METER)}
        monkeypatch.setenv("STRANDLINE_SCHEMA_REGISTRY_URL", registry.url)
        record = avro_record(METER, {"id": "a", "ts": 100})
        values = [numbered(7, record), numbered(8, record), numbered(7, record), numbered(8, record)]
        outcomes = list(Desk(pipeline).feed(DeskRecords(values, [0] * 4)))
        assert [json.loads(one.document.source)["id"] for one in outcomes if isinstance(one, DeskResult)] == ["a", "a"]
        messages = [one.message for one in outcomes if isinstance(one, LocalDeadLetter)]
        assert messages == ["the schema registry has no avro schema 8"] * 2
        assert len(registry.asked) == 2, "each number once"
        registry.is_away = True
        with pytest.raises(RegistryUnavailable):
            list(Desk(pipeline).feed(DeskRecords(values, [0] * 4)))
    finally:
        registry.close()


def outcomes_of(text: str, values: list[bytes | None], slice_records: int) -> list[Outcome]:
    desk = Desk(read_pipeline(text.encode(), "x"), slice_records)
    return [*desk.feed(DeskRecords(values, [0] * len(values))), *desk.drain()]


@pytest.mark.guarantee("G366")
def test_records_without_a_row_are_no_stumbling_block() -> None:
    """Tombstones of changes, and arrays without an element, wherever slices are cut between them."""
    event = b'{"op": "c", "after": {"id": "a", "ts": %d}}'
    changes: list[bytes | None] = [None, event % 100, None, None, None, event % 101, None]
    exploded: list[bytes | None] = [
        b'{"id": "a", "all": []}' if one is None else b'{"id": "a", "all": [{"ts": 100}]}' for one in changes
    ]
    for text, values in (
        (documents_of("debezium"), changes),
        (documents_of("json\nexplode: $.all"), exploded),
    ):
        for size in (1, 2, 3, 100):
            found = outcomes_of(text, values, size)
            places = [
                json.loads(one.document.source)["strandline"]["offset"] for one in found if isinstance(one, DeskResult)
            ]
            assert places == [1, 5]
            assert not [one for one in found if isinstance(one, LocalDeadLetter)]


def test_a_tombstone_of_another_format_is_a_dead_letter() -> None:
    (letter,) = outcomes_of(documents_of("json"), [None], 1)
    assert isinstance(letter, LocalDeadLetter)
    assert (letter.reason, letter.value) == ("decode", None)


def test_a_case_sends_headers_tombstones_and_bytes(tmp_path: Path) -> None:
    def report(fields: str, steps: list[dict[str, Any]], **expect: Any) -> Any:
        (tmp_path / "meters.yaml").write_text(documents_of(fields))
        test = {"test": "t", "file": "meters.yaml", "steps": steps, "expect": expect}
        return run_case(CaseSpec.from_document(test), tmp_path)

    headers = "json\nhttp: {headers: {id: X-Device}}"
    step = {"record": {"ts": 100}, "headers": {"x-device": "a"}, "query": "ts=5"}
    assert report(headers, [step], results=[{"id": "a", "ts": "1970-01-01T00:01:40Z"}]).passed
    tombstones = {"records": [None, {"op": "c", "after": {"id": "a", "ts": 100}}, None]}
    assert report("debezium", [tombstones], results=[{"id": "a", "strandline.offset": 1}]).passed
    with pytest.raises(InvalidDocument, match=r"steps\[0\]\.base64: a string of this step is not base64"):
        report("json", [{"record": "?", "base64": True}])


def test_a_key_beside_the_record_leads_to_its_partition(tmp_path: Path) -> None:
    """A level of the topic, or a header of HTTP, as gateways take it."""
    pipeline = documents_of("raw\nkey: id\nmqtt: {topics: ['m/+'], fields: {id: 1}}\nhttp: {headers: {id: x-id}}")
    pipeline = pipeline.replace("ts: {type: timestamp, unit: s}", "text: string").replace(
        "field: ts, delay: 10s", "from: log"
    )
    (tmp_path / "meters.yaml").write_text(pipeline)
    steps = [
        {"record": "a", "topic": f"m/{one}", "at": 100}
        if at % 2
        else {"record": "a", "headers": {"X-Id": one}, "at": 100}
        for at, one in enumerate("abcdef")
    ]
    results = [{"id": one, "strandline.partition": partition_of_key(one.encode(), 5), "text": "a"} for one in "abcdef"]
    test = {"test": "t", "file": "meters.yaml", "partitions": 5, "steps": steps, "expect": {"results": results}}
    report = run_case(CaseSpec.from_document(test), tmp_path)
    assert report.passed, report


def test_requests_with_metrics_are_records(say: Say, tmp_path: Path) -> None:
    """OpenTelemetry's as lines of JSON and in Protobuf, and remote writes; each data point is a row."""
    (tmp_path / "otlp").write_text(json.dumps(OTLP) + "\n")
    (tmp_path / "otlp.b64").write_bytes(base64.b64encode(protobuf(OTLP)))
    series = {"__name__": "up", "instance": "a"}
    (tmp_path / "writes.b64").write_bytes(base64.b64encode(write_request((series, [(1.5, 60_000), (2.5, 61_000)]))))
    found = []
    for name, file in (("otlp", "otlp"), ("otlp", "otlp.b64"), ("prometheus", "writes.b64")):
        said = say("pipeline", "run", str(EXAMPLES / f"{name}.yaml"), "--input", str(tmp_path / file), "--json")
        found.append([json.loads(line) for line in said.out.splitlines()])
    assert found[0] == found[1]
    assert {one["metric"]: one["n"] for one in found[0]}["my.counter"] == 1
    (write,) = found[2]
    assert (write["metric"], write["instance"], write["n"], write["low"], write["high"]) == ("up", "a", 2, 1.5, 2.5)


@pytest.mark.parametrize(
    ("unit", "number", "told"),
    [
        ("ns", 1_793_534_400, "field ts is read in ns, but in s the first would be 2026-11-01; if it counts"),
        ("ms", 1_793_534_400, "write ts: {type: timestamp, unit: s} in the stream's schema"),
        ("us", 1_793_534_400_000, "but in ms the first would be 2026-11-01; if it counts"),
        ("s", 5, "check the values of field ts, and its 'unit' in the schema, which is s"),
        ("s", 1_793_534_400, None),
    ],
)
def test_a_run_warns_where_all_times_lie_before_1990(
    unit: str, number: int, told: str | None, say: Say, tmp_path: Path
) -> None:
    (tmp_path / "meters.yaml").write_text(documents_of("json").replace("unit: s", f"unit: {unit}"))
    file = tmp_path / "meters.ndjson"
    lines = [json.dumps({"id": "a", "ts": number + at}) for at in range(3)]
    file.write_text("\n".join(lines))
    run = ("pipeline", "run", str(tmp_path / "meters.yaml"), "--input", str(file))
    said = say(*run)
    assert said.code == 0
    if told is None:
        assert said.err == ""
        return
    assert said.err.startswith("warning: all event times of stream meters are before 1990, the first at 1970-01-")
    assert told in said.err
    (line,) = say(*run, "--json").err.splitlines()
    assert told in json.loads(line)["warning"]
    file.write_text("\n".join([*lines, json.dumps({"id": "a", "ts": "2026-11-01T00:00:00Z"}), '{"id": "a"}']))
    assert "warning" not in say(*run).err
