"""Spools of writers that run no more: found by the gateway that has their data directory and port now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from strandline.core.errors import StackError
from strandline.core.record_headers import HEADER_WRITER
from strandline.ingest.append.spool import Spool, SpooledRecord
from strandline.ingest.append.writer_identity import WriterIdentity
from strandline.ingest.gateway.left_spools import WriterDisk, open_writer_disks

BYTES_MAX = 1_000_000


def leave(data_dir: Path, writer_id: str, *values: bytes) -> None:
    """A writer that ran, spooled these values and ended."""
    with closing(WriterIdentity.take(data_dir, writer_id)) as identity:
        with closing(Spool(identity.directory, bytes_max=BYTES_MAX)) as spool:
            if values:
                writer = [(HEADER_WRITER, writer_id.encode())]
                spool.add([SpooledRecord("readings", 1, n, value, None, writer) for n, value in enumerate(values, 1)])


@contextmanager
def opened(data_dir: Path, host: str, port: int = 8081) -> Iterator[list[WriterDisk]]:
    disks = open_writer_disks(data_dir, "http", host, port, spool_bytes_max=BYTES_MAX)
    try:
        yield disks
    finally:
        for disk in disks:
            disk.close()


def found(disks: list[WriterDisk]) -> list[tuple[str, int]]:
    return [(disk.identity.writer_id, disk.spool.records) for disk in disks]


def test_a_gateway_with_a_new_name_goes_on_as_the_writer_that_left_records(tmp_path: Path) -> None:
    leave(tmp_path, "http-old-8081", b"one", b"two")
    with capture_logs() as logs, opened(tmp_path, "new") as disks:
        assert found(disks) == [("http-old-8081", 2)]
    assert [log["action"] for log in logs] == ["left_spool_found"]
    assert not (tmp_path / "ingest" / "http-new-8081").exists()


def test_nothing_was_left_and_the_new_name_is_used(tmp_path: Path) -> None:
    leave(tmp_path, "http-old-8081")
    with opened(tmp_path, "new") as disks:
        assert found(disks) == [("http-new-8081", 0)]


def test_one_that_ran_under_its_name_before_keeps_it_and_empties_what_others_left(tmp_path: Path) -> None:
    leave(tmp_path, "http-old-8081", b"one")
    leave(tmp_path, "http-older-8081", b"two", b"three")
    leave(tmp_path, "http-new-8081", b"mine")
    with opened(tmp_path, "new") as disks:
        assert found(disks) == [("http-new-8081", 1), ("http-old-8081", 1), ("http-older-8081", 2)]


def test_what_belongs_to_a_running_writer_or_another_protocol_is_left_alone(tmp_path: Path) -> None:
    leave(tmp_path, "http-other-8081", b"one")
    leave(tmp_path, "udp-old-8081", b"two")
    leave(tmp_path, "http-listener-new-8086", b"three")
    with opened(tmp_path, "other") as running, capture_logs() as logs, opened(tmp_path, "new") as disks:
        assert found(running) == [("http-other-8081", 1)]
        assert found(disks) == [("http-new-8081", 0)]
    assert logs == []


def test_a_spool_of_another_port_is_reported_and_left_alone(tmp_path: Path) -> None:
    leave(tmp_path, "http-new-9081", b"one")
    with capture_logs() as logs, opened(tmp_path, "new") as disks:
        assert found(disks) == [("http-new-8081", 0)]
    assert [(log["action"], log["writer"]) for log in logs] == [("left_spool_reported", "http-new-9081")]
    with opened(tmp_path, "new", 9081) as disks:
        assert found(disks) == [("http-new-9081", 1)]


@pytest.mark.guarantee("G153")
@pytest.mark.parametrize("name", ["http-new-8081", "http-older-8081"])
def test_a_directory_that_was_renamed_is_refused(tmp_path: Path, name: str) -> None:
    """The records were sent under another writer id, with which they are searched in the log."""
    leave(tmp_path, "http-old-8081", b"one")
    (tmp_path / "ingest" / "http-old-8081").rename(tmp_path / "ingest" / name)
    with pytest.raises(StackError, match="rename it to http-old-8081, and start again"), opened(tmp_path, "new"):
        pass


def test_a_spool_that_needs_repair_counts_as_one_that_holds_records(tmp_path: Path) -> None:
    leave(tmp_path, "http-old-8081", b"one")
    (tmp_path / "ingest" / "http-old-8081" / "spool.sqlite").chmod(0o600)
    journal = tmp_path / "ingest" / "http-old-8081" / "spool.sqlite-journal"
    journal.write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(1_016))
    with opened(tmp_path, "new") as disks:
        assert found(disks) == [("http-old-8081", 1)]
