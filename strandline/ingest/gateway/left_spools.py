"""Finds the writer that a gateway is, and the spools that writers which run no more have left in its data directory.

The id of a writer holds the host's name. A container that is made anew has another name and the volume of the one before it,
whose spool may hold records that were acknowledged. Therefore a gateway with a new name goes on as the writer that left them,
which also keeps the order: what comes now stands behind what waits. Every other spool that was left for its port it empties
beside its own. For another port it only says so: that gateway may be starting at this moment.
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
    """What a writer has on disk, locked for this process."""

    identity: WriterIdentity
    spool: Spool

    def close(self) -> None:
        self.spool.close()
        self.identity.close()


def open_writer_disks(data_dir: Path, protocol: str, host: str, port: int, *, spool_bytes_max: int) -> list[WriterDisk]:
    """The disk of the writer that this gateway is; behind it those of other writers, and it empties their spools.

    Raises StackError when another process has the writer's id, and when a spool can't be opened or is another writer's.
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
                f"the spool in {directories[writer_id]} holds records, and no gateway uses it; start a gateway with that "
                "port and they go into the log",
                action="left_spool_reported",
                writer=writer_id,
            )
    for disk in left:
        logger.warning(
            f"the spool of writer {disk.identity.writer_id}, which runs no more, holds {disk.spool.records} records; they go "
            "into the log now",
            action="left_spool_found",
            writer=disk.identity.writer_id,
            records=disk.spool.records,
        )
    if left and own not in directories:
        return left
    return [_open(WriterIdentity.take(data_dir, own), spool_bytes_max), *left]


def _open(identity: WriterIdentity, spool_bytes_max: int) -> WriterDisk:
    """The disk of a writer. Raises StackError when its spool holds another writer's records.

    Whether those are in the log already could not be told: they are looked for under the writer's id.
    """
    spool = Spool(identity.directory, bytes_max=spool_bytes_max)
    oldest = [chunk.records[0] for topic in spool.records_of if (chunk := spool.head(topic, 1, 1)) is not None]
    for record in (*oldest, *(spool.doubtful(number)[0] for number in spool.doubts)):
        writer_id = dict(record.headers).get(HEADER_WRITER, b"").decode()
        if writer_id != identity.writer_id:
            raise StackError(
                f"the spool in {identity.directory} holds records of writer {writer_id}, not of {identity.writer_id}; was the "
                f"directory renamed or copied? Give it the name {writer_id} back, and start again: nothing is lost"
            )
    return WriterDisk(identity, spool)


def _take(data_dir: Path, writer_id: str, spool_bytes_max: int) -> list[WriterDisk]:
    """The disk of this writer; none if its own process has started meanwhile."""
    try:
        identity = WriterIdentity.take(data_dir, writer_id)
    except StackError as error:
        logger.warning("a spool is left to another process", action="left_spool_taken", reason=str(error))
        return []
    return [_open(identity, spool_bytes_max)]


def _holds_records(directory: Path) -> bool:
    """Whether a spool there may hold records, and no process uses it."""
    file = directory / SPOOL_FILE
    if not file.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=0)) as spool:
            return spool.execute(_ANY_RECORD).fetchone() is not None
    except sqlite3.Error as error:
        # A spool in use is locked. One that a killed process left in the middle of a write can't be read without repair.
        return getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_BUSY
