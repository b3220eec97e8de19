"""Commands of the service for devices that send records, with an example that the stream accepts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.record_rows import RowReader, record_format
from strandline.processing.pipelines.event_time import EventTimeSource
from strandline.services.control import ControlSettings, _gateways
from strandline.services.embedded.addresses import StackAddresses, stack_settings
from strandline.services.jobs.sending import KnownGateways, example_record, ways_to_send
from tests.support.control import Api

NOW_MS = 1_790_000_000_000
ALL = KnownGateways(
    {
        "http": "https://ingest.example.org/",
        "mqtt": "mqtt://bridge:secret@broker.example.org:1893",
        "mqtt-listener": "mqtts://ingest.example.org:8883",
        "udp": "udp://ingest.example.org",
        "tcp": "tcp://ingest.example.org",
        "poll": "http://ingest.example.org",
        "unknown": "x://ingest.example.org",
    },
    100,
    can_relay=True,
)
STREAM = {
    "stream": "probes",
    "schema": {
        "probe": "string", "at": "timestamp", "seen": {"type": "timestamp", "unit": "s"}, "n": {"type": "long", "min": 5},
        "load": {"type": "double", "max": 1}, "on": "boolean?", "price": "decimal(8,2)", "tags": "array<string>",
        "place": "struct<lat: double, name: string>", "inner": {"type": "double", "from": "$.a.b"},
        "other": {"type": "string", "from": "$.a['c d']"}, "day": {"type": "timestamp", "pattern": "d/M/yyyy HH:mm:ss"},
        "rest": "json",
    },
}  # fmt: skip


def stream(**more: object) -> StreamSpec:
    return StreamSpec.from_document({**STREAM, **more})


def test_the_example_has_each_declared_field_and_the_stream_accepts_it() -> None:
    without_pattern = {name: kind for name, kind in STREAM["schema"].items() if name != "day"}  # type: ignore[attr-defined]
    spec = stream(schema=without_pattern)
    record = example_record(spec, NOW_MS)
    assert record is not None
    config = record_format(spec)
    fields = [one.name for one in config.fields]
    decoder = Decoder(config.fields, EventTimeSource(None), fields)
    for rows in RowReader(config).parts([record.encode()], []):
        decoded = decoder.decode(rows.texts, [0] * len(rows.texts), None)
        assert [one.message for one in decoded.rejects] == [] and len(decoded.event_time) == 1
    assert set(json.loads(record)) == {"probe", "at", "seen", "n", "load", "on", "price", "tags", "place", "a"}


@pytest.mark.parametrize(
    "document",
    [
        {"format": "csv", "csv": {"columns": ["probe", "at"]}, "schema": {"probe": "string", "at": "timestamp"}},
        {"schema": {"v": "double"}, "explode": "$.items"},
        {"schema": {"v": {"type": "double", "from": "$.items[0].v"}}},
        {"schema": {"whole": "double", "part": {"type": "double", "from": "$.whole.part"}}},
    ],
    ids=["csv", "several rows", "element", "path through a number"],
)
def test_without_an_example_the_command_has_a_placeholder(document: dict[str, object]) -> None:
    spec = StreamSpec.from_document({"stream": "probes", **document})
    found = ways_to_send(spec, ALL, requires_token=False)
    assert found.record is None
    assert "--data-binary RECORD " in found.ways[0].command


def test_each_gateway_that_accepts_records_of_the_stream_has_its_address() -> None:
    spec = stream(mqtt={"topics": ["farm/+/probe"]}, udp={"port": 8082}, tcp={"port": 8083})
    found = ways_to_send(spec, ALL, requires_token=True)
    assert found.record is not None
    by_name = {one.gateway: one for one in found.ways}
    assert list(by_name) == ["http", "mqtt", "mqtt-listener", "udp", "tcp"]
    curl = shlex.split(by_name["http"].command)
    assert curl[-1] == by_name["http"].address == "https://ingest.example.org/v1/streams/probes/records"
    assert "Authorization: Bearer TOKEN" in curl and "Content-Type: application/json" in curl
    assert curl[curl.index("--data-binary") + 1] == found.record, "the shell passes the record unchanged"
    assert (by_name["mqtt"].address, by_name["mqtt"].topics) == ("mqtt://broker.example.org:1893", ["farm/+/probe"])
    assert "--tls-use-os-certs" in by_name["mqtt-listener"].command and by_name["mqtt-listener"].note
    assert (by_name["udp"].address, by_name["tcp"].address) == (
        "udp://ingest.example.org:8182",
        "tcp://ingest.example.org:8183",
    )
    assert "secret" not in str(found)


def test_gateways_that_the_stream_does_not_use_are_left_out() -> None:
    found = ways_to_send(stream(udp={"port": 8082, "hmac": {}}), ALL, requires_token=False)
    assert [(one.gateway, bool(one.command)) for one in found.ways] == [("http", True), ("udp", False)]
    assert ways_to_send(stream(), KnownGateways({}, 0, can_relay=False), requires_token=False).ways == []


def test_an_embedded_stack_names_its_own_gateways() -> None:
    addresses = StackAddresses.of(Path("/nowhere"), 100)
    settings = ControlSettings.model_validate(stack_settings(ControlSettings(), addresses).model_dump())
    known = _gateways(settings)
    assert known.can_relay and settings.ingest_url == addresses.ingest_url
    assert known.urls == {
        "http": "http://127.0.0.1:8181",
        "mqtt": "mqtt://127.0.0.1:1983",
        "mqtt-listener": "mqtt://127.0.0.1:1984",
        "udp": "udp://127.0.0.1",
        "tcp": "tcp://127.0.0.1",
    } | {name: url for name, url in known.urls.items() if name == "poll"}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield opened
    opened.close()


def test_the_route_has_the_declared_fields_of_the_stream(ledger: Ledger) -> None:
    api = Api(ledger, gateways=ALL)
    assert api.apply("stream: lamps\nschema: {lamp: string, lux: double}\n").status_code == 200
    found = api.ask("GET", "/v1/streams/lamps/senders").json()
    assert json.loads(found["record"]) == {"lamp": "text", "lux": 1.5}
    assert (found["can_relay"], found["content_type"]) == (True, "application/json")
    assert api.ask("GET", "/v1/streams/nothing/senders").status_code == 404
