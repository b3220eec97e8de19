"""Finds the writer that a gateway uses, and the spools that stopped writers have left in its data directory.

The id of a writer contains the host's name. A container that is recreated has another host name and the volume of its
predecessor, whose spool may contain acknowledged records. Therefore a gateway with a new name continues as the writer
that left them. This also keeps the order: new records are appended after the spooled ones. The gateway also drains
every other spool that was left for its port, in addition to its own. A spool for another port is only reported: its
gateway may be starting at this moment.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import structlog

from strandline.core.errors import StackError
from strandline.core.record_headers import HEADER_WRITER
from strandline.ingest.append.spool import SPOOL_FILE, Spool
from strandline.ingest.append.writer_identity import WriterIdentity, writer_directories

logger = structlog.get_logger()

_ANY_RECORD = "SELECT 1 FROM records UNION ALL SELECT 1 FROM doubtful_records LIMIT 1"


class WriterDisk(NamedTuple):
    """Identity and spool of a writer, locked for this process."""

    identity: WriterIdentity
    spool: Spool

    def close(self) -> None:
        self.spool.close()
        self.identity.close()


def open_writer_disks(data_dir: Path, protocol: str, host: str, port: int, *, spool_bytes_max: int) -> list[WriterDisk]:
    """Return the identity and spool of this gateway's writer, then those of stopped writers, whose spools this gateway
    drains.

    Raises StackError if another process has the writer's id, or if a spool can't be opened or contains records of
    another writer.
    """
    own = f"{protocol}-{host}-{port}"
    directories = writer_directories(data_dir)
    left: list[WriterDisk] = []
    for writer_id in sorted(directories.keys() - {own}):
        is_of_this_port = writer_id.startswith(f"{protocol}-") and writer_id.endswith(f"-{port}")
        is_of_this_host = re.fullmatch(rf"{re.escape(f'{protocol}-{host}')}-\d+", writer_id) is not None
        if not (is_of_this_port or is_of_this_host) or not _holds_records(directories[writer_id]):
            continue
        if is_of_this_port:
            left += _take(data_dir, writer_id, spool_bytes_max)
        else:
            logger.warning(
                f"the spool in {directories[writer_id]} contains records, and no gateway uses it; start a gateway with that "
                "port, which appends them to the log",
                action="left_spool_reported",
                writer=writer_id,
            )
    for disk in left:
        logger.warning(
            f"the spool of the stopped writer {disk.identity.writer_id} contains {disk.spool.records} records; they are "
            "appended to the log now",
            action="left_spool_found",
            writer=disk.identity.writer_id,
            records=disk.spool.records,
        )
    if left and own not in directories:
        return left
    return [_open(WriterIdentity.take(data_dir, own), spool_bytes_max), *left]


def _open(identity: WriterIdentity, spool_bytes_max: int) -> WriterDisk:
    """Open the spool of a writer. Raises StackError if it contains records of another writer.

    Such records can't be searched in the log, because the search uses the writer's id.
    """
    spool = Spool(identity.directory, bytes_max=spool_bytes_max)
    oldest = [chunk.records[0] for topic in spool.records_of if (chunk := spool.head(topic, 1, 1)) is not None]
    for record in (*oldest, *(spool.doubtful(number)[0] for number in spool.doubts)):
        writer_id = dict(record.headers).get(HEADER_WRITER, b"").decode()
        if writer_id != identity.writer_id:
            raise StackError(
                f"the spool in {identity.directory} contains records of writer {writer_id}, not of {identity.writer_id}; if the "
                f"directory was renamed or copied, rename it to {writer_id}, and start again: nothing is lost"
            )
    return WriterDisk(identity, spool)


def _take(data_dir: Path, writer_id: str, spool_bytes_max: int) -> list[WriterDisk]:
    """Return the identity and spool of this writer. Empty if its own process has started in the meantime."""
    try:
        identity = WriterIdentity.take(data_dir, writer_id)
    except StackError as error:
        logger.warning("another process uses a spool", action="left_spool_taken", reason=str(error))
        return []
    return [_open(identity, spool_bytes_max)]


def _holds_records(directory: Path) -> bool:
    """Return True if the directory may contain a spool with records, and no process uses it."""
    file = directory / SPOOL_FILE
    if not file.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=0)) as spool:
            return spool.execute(_ANY_RECORD).fetchone() is not None
    except sqlite3.Error as error:
        # A spool in use is locked. A spool of a process that was killed during a write can't be read without repair.
        return getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_BUSY
