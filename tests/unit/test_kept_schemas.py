"""An answer of the schema registry counts permanently.

An unavailable registry changes nothing, and one with a different answer stops the job.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from strandline.core.errors import InvalidSettings, RegistryUnavailable, SchemaChanged, TransientError
from strandline.ledger.ledger import Ledger
from strandline.processing.formats.record_fields import Rejection
from strandline.processing.formats.with_schema.registered_schemas import RegisteredSchema
from strandline.processing.formats.with_schema.schema_registry import SchemaRegistry
from strandline.processing.source import kept_schemas
from strandline.processing.source.kept_schemas import (
    SchemaCache,
    SchemasNow,
    SchemasOfSlice,
    SliceScope,
    schemas_of_process,
)
from tests.support.ledgers import a_checkpoint, a_slice
from tests.support.messages import RegistryServer

LONG = RegisteredSchema('{"type":"record","name":"R","fields":[{"name":"x","type":"long"}]}')


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    server = RegistryServer()
    server.schemas[7, ""] = {"schema": LONG.text}
    yield server
    server.close()


class Process:
    """Processes that read records of job `power`, with the ledger that all share."""

    def __init__(self, directory: Path) -> None:
        self.ledger_url = f"sqlite:///{directory}/ledger.sqlite"

    def begin(self, registry: SchemaRegistry | None) -> SchemaCache:
        """The schemas of a process that has just started."""
        return SchemaCache(lambda: Ledger.open(self.ledger_url), lambda: registry)

    def slice(
        self, registry: SchemaRegistry | None, number: int, *, stream: str = "turbines", is_open: bool = True
    ) -> SchemasOfSlice:
        """Return the schemas with which a process that has just started reads a slice."""
        return SchemasOfSlice(self.begin(registry), SliceScope("power", stream, number, is_open))

    def commit(self, number: int) -> None:
        """Commit this slice, and plan the next one."""
        with closing(Ledger.open(self.ledger_url)) as ledger:
            ledger.commit_checkpoint(a_checkpoint(number))
            ledger.plan_slice(a_slice(number + 1))


@pytest.fixture
def process(tmp_path: Path) -> Process:
    """Slice 1 is open."""
    process = Process(tmp_path)
    with closing(Ledger.open(process.ledger_url)) as ledger:
        ledger.submit_job("power", "pipeline: power", {"pipeline": "power"})
        ledger.begin_run("power", pid=4711)
        ledger.plan_slice(a_slice(1))
    return process


UNKNOWN_8 = Rejection("decode", "the schema registry has no avro schema 8")


@pytest.mark.guarantee(
    "G281",
    "The first answer of a schema registry for a number is used ever after: replays, audits, and backfills need no "
    "registry. If the registry is unavailable, the job waits, and no dead letter is written. If it returns another "
    "schema for the number, the job stops at new records.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
def test_a_replay_needs_no_registry(process: Process, server: RegistryServer) -> None:
    assert process.slice(SchemaRegistry(server.url), 1).schema("avro", 7) == LONG
    assert [path for path, _ in server.asked] == ["/schemas/ids/7"]
    process.commit(1)
    away = SchemaRegistry("http://127.0.0.1:9")
    for registry in (None, away):
        assert process.slice(registry, 1, is_open=False).schema("avro", 7) == LONG
        assert process.slice(registry, 1, is_open=False).schema("avro", 8) == UNKNOWN_8
        assert process.slice(registry, 2).schema("avro", 7) == LONG
    with pytest.raises(RegistryUnavailable, match="does not respond to /schemas/ids/8"):
        process.slice(away, 2).schema("avro", 8)
    assert issubclass(RegistryUnavailable, TransientError)
    with pytest.raises(InvalidSettings, match="set STRANDLINE_SCHEMA_REGISTRY_URL"):
        process.slice(None, 2).schema("avro", 8)


@pytest.mark.guarantee("G281")
def test_a_registry_that_gives_another_schema_stops_new_slices_and_no_replay(
    process: Process, server: RegistryServer
) -> None:
    registry = SchemaRegistry(server.url)
    process.slice(registry, 1).schema("avro", 7)
    process.commit(1)
    server.schemas[7, ""] = {"schema": LONG.text.replace("long", "double")}
    assert process.slice(registry, 1, is_open=False).schema("avro", 7) == LONG
    later = process.slice(registry, 2)
    for _ in range(2):
        with pytest.raises(SchemaChanged, match="gives another avro schema 7"):
            later.schema("avro", 7)
    del server.schemas[7, ""]
    assert later.schema("avro", 7) == LONG


def test_a_sound_registry_is_asked_once_in_each_process(process: Process, server: RegistryServer) -> None:
    process.slice(SchemaRegistry(server.url), 1).schema("avro", 7)
    later = process.begin(SchemaRegistry(server.url))
    for _ in range(3):
        assert SchemasOfSlice(later, SliceScope("power", "turbines", 1, True)).schema("avro", 7) == LONG
    assert len(server.asked) == 2


@pytest.mark.guarantee("G281")
@pytest.mark.guarantee(
    "G799",
    "A record with a schema number that the registry doesn't have becomes a dead letter and has no other effect. The "
    "number is unknown only for its stream in its slice, also in replays, and such records never stop a stream.",
    promise="each-rejected-record-is-one-dead-letter",
)
def test_a_number_that_came_too_early_is_unknown_in_its_slice_alone(process: Process, server: RegistryServer) -> None:
    """A device that names numbers which others will register later can't take these numbers from them."""
    registry = SchemaRegistry(server.url)
    assert process.slice(registry, 1).schema("avro", 8) == UNKNOWN_8
    server.schemas[8, ""] = {"schema": LONG.text}
    assert process.slice(registry, 1).schema("avro", 8) == UNKNOWN_8, "a restart within the slice"
    assert process.slice(registry, 1, stream="others").schema("avro", 8) == LONG
    process.commit(1)
    assert process.slice(registry, 2).schema("avro", 8) == LONG
    process.commit(2)
    del server.schemas[8, ""]
    assert [process.slice(None, n, is_open=False).schema("avro", 8) for n in (1, 2)] == [UNKNOWN_8, LONG]
    assert [process.begin(None).generation("power", "turbines", n) for n in (1, 2, 3)] == [0, 1, 1]
    server.schemas[9, ""] = {"schema": "message R {}", "schemaType": "PROTOBUF"}
    assert isinstance(process.slice(registry, 3).schema("avro", 9), Rejection)


@pytest.mark.guarantee("G799")
def test_no_number_of_unknown_schemas_stops_a_stream(
    process: Process, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_schemas, "UNKNOWN_MAX", 3)
    registry = SchemaRegistry(server.url)
    server.schemas[6, ""] = {"schema": LONG.text}
    used = process.begin(registry)
    one, other = (SchemasOfSlice(used, SliceScope("power", "turbines", 1, True)) for _ in range(2))
    for number in (20, 21, 22, 20):
        assert one.schema("avro", number) == Rejection("decode", f"the schema registry has no avro schema {number}")
    assert one.schema("avro", 21).message.endswith("no avro schema 21")
    queries = len(server.asked)
    for task in (one, process.slice(registry, 1), process.slice(registry, 1, is_open=True)):
        for number in range(23, 200):
            assert "was not looked up: more than 3 schemas" in task.schema("avro", number).message
    assert len(server.asked) == queries
    assert "was not looked up" in other.schema("avro", 7).message, "it began before the slice was full"
    assert process.slice(registry, 1, stream="others").schema("avro", 7) == LONG
    process.commit(1)
    assert process.slice(registry, 2).schema("avro", 7) == LONG
    assert isinstance(process.slice(registry, 1, is_open=False).schema("avro", 7), Rejection)


def test_a_full_slice_still_reads_by_the_schemas_that_another_process_recorded(
    process: Process, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_schemas, "UNKNOWN_MAX", 1)
    registry = SchemaRegistry(server.url)
    early = process.begin(registry)
    scope = SliceScope("power", "turbines", 1, True)
    assert not early.is_used(scope, ("avro", 7))
    assert process.slice(registry, 1).schema("avro", 7) == LONG
    assert process.slice(registry, 1).schema("avro", 20) == Rejection(
        "decode", "the schema registry has no avro schema 20"
    )
    assert SchemasOfSlice(early, scope).schema("avro", 7) == LONG


def test_records_outside_a_slice_are_read_as_the_registry_is_now(
    process: Process, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_schemas, "UNKNOWN_MAX", 1)
    kept = process.begin(SchemaRegistry(server.url))
    now = SchemasNow(kept)
    assert now.schema("avro", 8) == now.schema("avro", 8) == UNKNOWN_8
    assert "was not looked up" in now.schema("avro", 9).message
    server.schemas[8, ""] = {"schema": LONG.text}
    assert SchemasNow(kept).schema("avro", 8) == LONG
    server.schemas[8, ""] = {"schema": LONG.text.replace("long", "double")}
    later = process.begin(SchemaRegistry(server.url))
    assert SchemasNow(later).schema("avro", 8) == LONG
    with pytest.raises(SchemaChanged, match="gives another avro schema 8"):
        SchemasNow(later, are_new=True).schema("avro", 8)


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
    SchemasNow(schemas_of_process(process.ledger_url)).schema("avro", 7)
    server.schemas[8, ""] = {"schema": LONG.text}
    password.write_text("second")
    SchemasNow(schemas_of_process(process.ledger_url)).schema("avro", 8)
    assert [authorization for _, authorization in server.asked] == [
        "Basic " + base64.b64encode(f"me:{word}".encode()).decode() for word in ("first", "second")
    ]


@pytest.mark.parametrize("path", ["http://127.0.0.1:9", "nonsense", "http://[", "ftp://127.0.0.1"])
def test_a_registry_that_can_not_be_reached_is_named(path: str) -> None:
    with pytest.raises(RegistryUnavailable, match="the schema registry at"):
        SchemaRegistry(path).schema("avro", 7)
