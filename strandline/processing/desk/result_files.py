"""Files of results, with documents as lines or as the rows of a Parquet file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from strandline.core.errors import InvalidDocument, PermanentError, Problem
from strandline.core.field_types import digits_of, element_of, members_of
from strandline.processing.columns.arrow_types import arrow_type
from strandline.processing.desk.desk import DeskResult
from strandline.processing.pipelines.stages import RecordStage, Stage

_ROWS_A_GROUP = 50_000
_MOMENT = arrow_type("timestamp")
_OWN = {
    "strandline_id": pa.string(),
    "strandline_index": pa.string(),
    "strandline_stage": pa.string(),
    "strandline_time": _MOMENT,
}
_OF_WINDOWS = {"strandline_window_start": _MOMENT, "strandline_window_end": _MOMENT}
_OF_RECORDS = {
    "strandline_partition": pa.int32(),
    "strandline_offset": pa.int64(),
    "strandline_element": pa.int32(),
}
"""Internal columns, with the names that the sink `files` uses."""
AnyStage = Stage | RecordStage


class ResultFile(Protocol):
    """Writes results, one after another."""

    def write(self, result: DeskResult) -> None:
        """Write one result."""
        ...

    def close(self) -> None:
        """Write buffered results."""
        ...


@contextmanager
def result_file(path: Path, stages: Sequence[AnyStage]) -> Iterator[ResultFile]:
    """Open a file for the results of these stages. Its suffix selects the kind. It is complete when the body ends.

    Raises PermanentError if it can't be written, InvalidDocument if the stages don't fit into one table.
    """
    kinds: dict[str, Callable[[Path, Sequence[AnyStage]], ResultFile]] = {
        ".ndjson": _Lines,
        ".jsonl": _Lines,
        ".parquet": _Rows,
    }
    kind = kinds.get(path.suffix)
    if kind is None:
        raise InvalidDocument(
            [Problem(f"{path}: unknown kind of file; expected a name with .ndjson, .jsonl or .parquet")]
        )
    try:
        file = kind(path, stages)
        try:
            yield file
        finally:
            file.close()
    except OSError as error:
        raise PermanentError(f"{path} can't be written: {error}") from error


class _Lines:
    """One document per line."""

    def __init__(self, path: Path, _stages: Sequence[AnyStage]) -> None:
        self._file = path.open("wb")

    def write(self, result: DeskResult) -> None:
        self._file.write(result.document.source + b"\n")

    def close(self) -> None:
        self._file.close()


class _Rows:
    """Writes a Parquet file with one row for each result. Columns: id of the document, index, stage, and time; times of the
    window, or log position of an emitted record; fields of all stages."""

    def __init__(self, path: Path, stages: Sequence[AnyStage]) -> None:
        import pyarrow.parquet as pq

        self._types = {stage.name: stage.field_types for stage in stages}
        types: dict[str, str] = {}
        for stage in stages:
            for name, kind in stage.field_types.items():
                if types.setdefault(name, kind) != kind:
                    message = f"{name} is a {types[name]} in one stage and a {kind} in '{stage.name}'; choose one with --stage"
                    raise InvalidDocument([Problem(message, source=str(path))])
        own = dict(_OWN)
        if any(isinstance(stage, Stage) for stage in stages):
            own |= _OF_WINDOWS
        if any(isinstance(stage, RecordStage) for stage in stages):
            own |= _OF_RECORDS
        if taken := own.keys() & types.keys():
            message = (
                f"{min(taken)} is a field of the results, but also an internal column of the file; write .ndjson, or rename "
                "the field"
            )
            raise InvalidDocument([Problem(message, source=str(path))])
        self._schema = pa.schema([*own.items(), *((name, arrow_type(kind)) for name, kind in types.items())])
        self._writer = pq.ParquetWriter(path, self._schema)
        self._held: list[dict[str, Any]] = []

    def write(self, result: DeskResult) -> None:
        document = json.loads(result.document.source)
        row = {name: typed_value(document.get(name), kind) for name, kind in self._types[result.stage].items()}
        origin = document["strandline"]
        own = (result.document.id, result.document.index, result.stage, _moment(document["@timestamp"]))
        row |= zip(_OWN, own, strict=True)
        if "window" in document:
            row |= zip(_OF_WINDOWS, map(_moment, (document["window"][edge] for edge in ("start", "end"))), strict=True)
        else:
            row |= zip(_OF_RECORDS, map(origin.get, ("partition", "offset", "element")), strict=True)
        self._held.append(row)
        if len(self._held) >= _ROWS_A_GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_pylist(self._held, self._schema))
            self._held = []


def typed_value(value: Any, kind: str) -> Any:
    """Return a value of a document in the type of its column."""
    if value is None:
        return None
    if (element := element_of(kind)) is not None:
        return [typed_value(one, element) for one in value]
    if members := members_of(kind):
        return {name: typed_value(value[name], inner) for name, inner in members.items()}
    if kind == "timestamp":
        return _moment(value)
    return Decimal(value) if digits_of(kind) else value


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
