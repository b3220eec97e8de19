"""Writes results as Arrow files, one for each slice and stage.

    DIRECTORY/NAME/JOB.STAGE.000000000017.arrow

Executors write parts with random names. When all parts of a slice are written, the driver sorts their rows by id into the file of
the slice. Readers see only this file. If it exists, it must contain the same rows: it is never changed.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from strandline.core.errors import Divergence, InvalidSettings
from strandline.results.document import DocumentShape
from strandline.results.sinks.typed_rows import ATTEMPT_COLUMNS, ID, typed_rows
from strandline.results.writer import WriteReport

DIRECTORY = "ACME_ARROW_DIRECTORY"


def directory_of(name: str) -> Path:
    """Return the directory of this name. Raises InvalidSettings."""
    if DIRECTORY not in os.environ:
        raise InvalidSettings(f"{DIRECTORY} is not set; set it to a directory that all machines share")
    return Path(os.environ[DIRECTORY]) / name


def files_of(directory: Path, job: str, stage: str) -> list[tuple[int, Path]]:
    """Return (emission, file) of each slice of a stage."""
    return [(int(path.name.split(".")[2]), path) for path in sorted(directory.glob(f"{job}.{stage}.*.arrow"))]


def read_file(path: Path) -> pa.Table:
    """Return the rows of a file."""
    with pa.ipc.open_file(path) as file:
        return file.read_all()


def digest_of(path: Path) -> str:
    """Return the digest of the slice of a file."""
    with pa.ipc.open_file(path) as file:
        return str(file.schema.metadata[b"slice_digest"].decode())


@dataclass(frozen=True)
class ArrowWriter:
    """A CommittedWriter. Pickles."""

    directory: Path
    name: str
    shape: DocumentShape

    @property
    def place(self) -> str:
        return f"arrow {self.shape.stage} {self.directory}"

    def prepare(self, next_end_ms: int | None) -> None:
        (self.directory / "parts").mkdir(parents=True, exist_ok=True)

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        """Write one part for each batch. The parts count when `commit` is called with them."""
        report = WriteReport()
        for batch in batches:
            rows = typed_rows(self.shape, batch, epoch, emission, slice_digest)
            report.refused += rows.refused
            part = self.directory / "parts" / uuid.uuid4().hex
            _write(part, pa.Table.from_batches([rows.table]))
            report.parts.append(str(part))
            report.created += rows.table.num_rows
            report.add_stored(f"sink arrow:{self.name} {self.shape.stage}", rows.table.num_rows)
        return report

    def commit(self, emission: int, epoch: int, parts: Sequence[str], slice_digest: str = "") -> None:
        """Write the file of a slice. Raises Divergence if it exists with other rows."""
        attempt = "" if self.shape.is_once else f".{epoch}"
        path = self.directory / f"{self.shape.job}.{self.shape.stage}.{emission:012d}{attempt}.arrow"
        table = pa.concat_tables([read_file(Path(part)) for part in parts]).sort_by(ID)
        if not path.exists():
            new = self.directory / "parts" / uuid.uuid4().hex
            _write(new, table.replace_schema_metadata({"slice_digest": slice_digest}))
            os.replace(new, path)
        elif not _results(read_file(path)).equals(_results(table)):
            raise Divergence(f"{path} contains other results of slice {emission}; nothing was changed")
        for part in parts:
            Path(part).unlink(missing_ok=True)


def _results(table: pa.Table) -> pa.Table:
    return table.drop_columns([name for name in table.column_names if name in ATTEMPT_COLUMNS])


def _write(path: Path, table: pa.Table) -> None:
    with path.open("wb") as file:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        file.flush()
        os.fsync(file.fileno())
