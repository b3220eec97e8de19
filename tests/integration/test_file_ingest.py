"""Files into a real Kafka: ended at each step of a transaction and begun again, each record is in the log once."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.core.settings import Settings
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append import transactional_writer
from strandline.ingest.append.writer_identity import WriterIdentity
from strandline.ingest.files import file_ingest
from strandline.ingest.files.file_ingest import FileIngest, Taken
from strandline.ingest.files.journal import Journal
from strandline.log.topics import Topics
from strandline.services.cli.ingest_verbs import Failure, _run
from tests.support.topic_reader import read_messages
from tests.support.waiting import stretched

ROWS = 25


class Ended(Exception):
    """Double of a kill: nothing happens after it."""


def ends_at(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """End the second transaction there, once."""
    counted = 0

    def ending(real: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object, **named: object) -> object:
            nonlocal counted
            counted += 1
            if counted == 2:
                raise Ended
            return real(*given, **named)

        return call

    target: tuple[object, str] = {
        "noted": (transactional_writer.TransactionalWriter, "commit"),
        "sent": (transactional_writer.TransactionalWriter, "_confirm"),
        "committed": (Journal, "end"),
    }[step]
    monkeypatch.setattr(*target, ending(getattr(*target)))


def test_one_file_that_can_not_be_read_costs_the_others_nothing(kafka: str, tmp_path: Path) -> None:
    spec = StreamSpec.from_document({"stream": f"files-{uuid.uuid4().hex[:8]}", "schema": {"n": "long"}})
    Topics(kafka, replication=1, record_bytes_max=100_000).ensure_stream_topic(spec)
    paths = [tmp_path / name for name in ("missing.ndjson", "broken.ndjson.gz", "good.ndjson", "again.ndjson")]
    paths[1].write_bytes(b"no gzip")
    for path in paths[2:]:
        path.write_bytes(b'{"n":1}\n\n{"n":2}')
    settings = Settings(kafka_bootstrap=kafka, data_dir=tmp_path, record_bytes_max=100_000)
    taken: list[dict[str, object]] = []
    failures: dict[Path, Failure] = {}
    asyncio.run(_run(settings, spec, iter(paths), False, lambda *_, **__: None, taken, failures))
    assert [(one["records"], one["before"]) for one in taken] == [(2, 0), (0, 2)]
    assert [(path, str(path) in one.message) for path, one in failures.items()] == [(path, True) for path in paths[:2]]
    assert len(read_messages(kafka, spec.stream, isolation="read_committed")) == 2


@pytest.mark.guarantee(
    "G305",
    "`strandline ingest` stores each record of a file once, wherever it is killed and however often it is started "
    "again. It recognises a moved, copied, or grown file by its content.",
    promise="records-are-stored-once-and-unchanged",
)
@pytest.mark.parametrize("step", ["noted", "sent", "committed"])
def test_each_record_of_a_file_is_in_the_log_once_wherever_the_ingest_ends(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    spec = StreamSpec.from_document({"stream": f"files-{uuid.uuid4().hex[:8]}", "schema": {"n": "long"}, "key": "n"})
    Topics(kafka, replication=1, record_bytes_max=100_000).ensure_stream_topic(spec)
    path = tmp_path / "day.ndjson.gz"
    path.write_bytes(gzip.compress(b"".join(b'{"n":%d}\n' % n for n in range(ROWS))))
    monkeypatch.setattr(file_ingest, "TRANSACTION_RECORDS_MAX", 10)

    async def run() -> Taken:
        with contextlib.closing(WriterIdentity.take(tmp_path, "files-host-s")) as identity:
            with contextlib.closing(Journal(identity.directory / "files.sqlite")) as journal:
                ingesting = FileIngest(
                    kafka, spec, identity, journal, record_bytes_max=100_000, confirm_timeout_s=stretched(20)
                )
                async with ingesting:
                    return await ingesting.take(path, lambda *_: None)

    with monkeypatch.context() as patch:
        ends_at(step, patch)
        with pytest.raises(Ended):
            asyncio.run(run())
    before = 10 if step == "noted" else 20
    assert asyncio.run(run()) == Taken(ROWS - before, before, 0)
    assert asyncio.run(run()) == Taken(0, ROWS, 0)
    found = [
        (message.value(), dict(message.headers()))
        for message in read_messages(kafka, spec.stream, isolation="read_committed")
    ]
    assert sorted(value for value, _ in found) == sorted(b'{"n":%d}' % n for n in range(ROWS))
    assert {int(headers["message-id"].rpartition(b":")[2]) for _, headers in found} == set(range(ROWS))
    assert {headers["strandline-source"] for _, headers in found} == {b"file:day.ndjson.gz"}
