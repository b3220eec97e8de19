"""What the schema registry gave once counts for ever: one that is away changes nothing, one that says otherwise stops the job."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.core.errors import InvalidSettings, PermanentError, RegistryUnavailable, SchemaChanged, TransientError
from strandline.ledger.ledger import Ledger
from strandline.processing.formats.record_fields import Rejection
from strandline.processing.formats.with_schema.registered_schemas import RegisteredSchema
from strandline.processing.formats.with_schema.schema_registry import SchemaRegistry
from strandline.processing.source import kept_schemas
from strandline.processing.source.kept_schemas import KeptSchemas, schemas_of_process
from tests.support.messages import RegistryServer

LONG = RegisteredSchema('{"type":"record","name":"R","fields":[{"name":"x","type":"long"}]}')


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    server = RegistryServer()
    server.schemas[7, ""] = {"schema": LONG.text}
    yield server
    server.close()


class Process:
    """A process that reads records, with the ledger that all share."""

    def __init__(self, directory: Path) -> None:
        self.ledger_url = f"sqlite:///{directory}/ledger.sqlite"

    def begin(self, registry: SchemaRegistry | None) -> KeptSchemas:
        return KeptSchemas(lambda: Ledger.open(self.ledger_url), lambda: registry)


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path)


def test_a_replay_needs_no_registry(process: Process, server: RegistryServer) -> None:
    assert process.begin(SchemaRegistry(server.url)).schema("avro", 7, is_new=True) == LONG
    assert [path for path, _ in server.asked] == ["/schemas/ids/7"]
    away = SchemaRegistry("http://127.0.0.1:9")
    for registry in (None, away):
        assert process.begin(registry).schema("avro", 7, is_new=False) == LONG
        assert process.begin(registry).schema("avro", 7, is_new=True) == LONG
    with pytest.raises(RegistryUnavailable, match="does not answer /schemas/ids/8"):
        process.begin(away).schema("avro", 8, is_new=False)
    assert issubclass(RegistryUnavailable, TransientError)
    with pytest.raises(InvalidSettings, match="set STRANDLINE_SCHEMA_REGISTRY_URL"):
        process.begin(None).schema("avro", 8, is_new=True)


def test_a_registry_that_gives_another_schema_stops_new_slices_and_no_replay(
    process: Process, server: RegistryServer
) -> None:
    registry = SchemaRegistry(server.url)
    process.begin(registry).schema("avro", 7, is_new=True)
    server.schemas[7, ""] = {"schema": LONG.text.replace("long", "double")}
    later = process.begin(registry)
    assert later.schema("avro", 7, is_new=False) == LONG
    for _ in range(2):
        with pytest.raises(SchemaChanged, match="gives another avro schema 7"):
            later.schema("avro", 7, is_new=True)
    del server.schemas[7, ""]
    assert later.schema("avro", 7, is_new=True) == LONG


def test_a_sound_registry_is_asked_once_in_each_process(process: Process, server: RegistryServer) -> None:
    process.begin(SchemaRegistry(server.url)).schema("avro", 7, is_new=True)
    later = process.begin(SchemaRegistry(server.url))
    for _ in range(3):
        assert later.schema("avro", 7, is_new=True) == LONG
    assert len(server.asked) == 2


def test_a_number_that_the_registry_has_not_stays_unknown(process: Process, server: RegistryServer) -> None:
    registry = SchemaRegistry(server.url)
    unknown = Rejection("decode", "the schema registry has no avro schema 8")
    assert process.begin(registry).schema("avro", 8, is_new=True) == unknown
    server.schemas[8, ""] = {"schema": LONG.text}
    for is_new in (False, True):
        assert process.begin(registry).schema("avro", 8, is_new=is_new) == unknown
    server.schemas[9, ""] = {"schema": "message R {}", "schemaType": "PROTOBUF"}
    assert isinstance(process.begin(registry).schema("avro", 9, is_new=True), Rejection)


def test_there_is_a_limit_to_unknown_numbers(
    process: Process, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_schemas, "UNKNOWN_MAX", 3)
    schemas = process.begin(SchemaRegistry(server.url))
    for number in (20, 21, 22, 20):
        schemas.schema("avro", number, is_new=True)
    with pytest.raises(PermanentError, match="more than 3 avro schemas that the registry does not have, now 23"):
        schemas.schema("avro", 23, is_new=True)
    assert schemas.schema("avro", 7, is_new=True) == LONG


def test_a_schema_comes_with_all_that_it_refers_to(server: RegistryServer) -> None:
    def refer(*names: str) -> list[dict[str, object]]:
        return [{"name": name, "subject": f"of/{name}", "version": 1} for name in names]

    server.schemas[1, "serialized"] = {"schema": "bWFpbg==", "schemaType": "PROTOBUF", "references": refer("a", "b")}
    server.versions["of/a", 1] = {"schema": "YQ==", "references": refer("b")}
    server.versions["of/b", 1] = {"schema": "Yg==", "references": refer("a")}  # in a circle: must end
    found = SchemaRegistry(server.url).schema("protobuf", 1)
    assert found == RegisteredSchema("bWFpbg==", (("b", "Yg=="), ("a", "YQ==")))
    server.versions.clear()
    with pytest.raises(RegistryUnavailable, match="has no /subjects/of%2Fa/versions/1"):
        SchemaRegistry(server.url).schema("protobuf", 1)


def test_user_and_password_are_sent_and_never_shown(server: RegistryServer) -> None:
    SchemaRegistry(server.url, "me", "secret word").schema("avro", 7)
    assert server.asked[-1][1] == "Basic bWU6c2VjcmV0IHdvcmQ="
    with pytest.raises(RegistryUnavailable) as error:
        SchemaRegistry("http://127.0.0.1:9", "me", "secret word").schema("avro", 7)
    assert "secret" not in str(error.value)


def test_a_password_that_was_replaced_reaches_a_process_that_goes_on(
    process: Process, server: RegistryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control service runs for months, and reads a stream's records for a lookup again and again."""
    password = tmp_path / "password"
    monkeypatch.setenv("STRANDLINE_SCHEMA_REGISTRY_URL", server.url)
    monkeypatch.setenv("STRANDLINE_SCHEMA_REGISTRY_USER", "me")
    monkeypatch.setenv("STRANDLINE_SCHEMA_REGISTRY_PASSWORD_FILE", str(password))
    Ledger.migrate(process.ledger_url)
    password.write_text("first")
    schemas_of_process(process.ledger_url, is_new=True).schema("avro", 7)
    server.schemas[8, ""] = {"schema": LONG.text}
    password.write_text("second")
    schemas_of_process(process.ledger_url, is_new=True).schema("avro", 8)
    assert [authorization for _, authorization in server.asked] == [
        "Basic " + base64.b64encode(f"me:{word}".encode()).decode() for word in ("first", "second")
    ]


@pytest.mark.parametrize("path", ["http://127.0.0.1:9", "nonsense", "http://[", "ftp://127.0.0.1"])
def test_a_registry_that_can_not_be_reached_is_named(path: str) -> None:
    with pytest.raises(RegistryUnavailable, match="The schema registry at"):
        SchemaRegistry(path).schema("avro", 7)
