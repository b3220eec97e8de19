"""A pipeline built in Python: its document, its check, and a local run over records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from strandline.core.documents import YamlDocument, did_you_mean
from strandline.frontends.document_text import write_documents
from strandline.processing.pipelines.model.pipeline import PipelineSpec

if TYPE_CHECKING:  # modules that compute are imported on demand
    from strandline.processing.desk.desk import Outcome
    from strandline.processing.pipelines.checked_pipeline import CheckedPipeline


class Documents(Protocol):
    """A pipeline or a stream."""

    def yaml_documents(self) -> list[YamlDocument]:
        """Return its documents, each with the positions of the calls that built it."""


Record = Mapping[str, Any] | str | bytes
"""An object, which becomes JSON, or the bytes or text of a sender."""


@dataclass(frozen=True)
class DeskRun:
    """Output of a local run."""

    results: list[dict[str, Any]]
    """Documents as in the store, in the order of their emission."""
    dead_letters: list[dict[str, Any]]
    """`reason`, `message`, `step`, position, `value`."""
    records: int
    """Number of records read; of rows, if a record is several rows."""

    def of(self, stage: str) -> list[dict[str, Any]]:
        """Return the documents of one stage."""
        return [one for one in self.results if one["strandline"]["stage"] == stage]


@dataclass(frozen=True, repr=False)
class Pipeline:
    """A pipeline whose document is valid on its own. `check` compares it with its streams."""

    document: YamlDocument
    """The document without defaults, with the position of each step."""
    known: tuple[YamlDocument, ...] = ()
    """Known documents of its streams and lookups."""
    spec: PipelineSpec = field(init=False, compare=False)
    """The model, which YAML, SQL, and Python share."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", PipelineSpec.parse(self.document))

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}>"

    @property
    def name(self) -> str:
        """Name of the pipeline, and of its job."""
        return self.document.name

    def as_document(self) -> dict[str, object]:
        """Return the canonical document: with its defaults, as plain data. It is equal for YAML, SQL, and Python."""
        return self.spec.as_document()

    def to_yaml(self) -> str:
        """Return the pipeline, and its known streams and lookups, as a file for `strandline apply`."""
        return write_documents(document.data for document in self.yaml_documents())

    def check(self, *known: Documents) -> CheckedPipeline:
        """Compare the pipeline with its streams: columns, types, window sizes. Needs no server.

        Raises InvalidDocument with every problem, each with the file and line of its step.
        Args: known: The stream, or the pipeline that emits it, if `stream()` got only a name.
        """
        from strandline.processing.desk.desk_pipeline import pipeline_of

        documents = self.yaml_documents()
        for one in known:
            documents += [document for document in one.yaml_documents() if document not in documents]
        return pipeline_of(documents, self.document.source, self.name)

    def run(
        self,
        records: Iterable[Record] | Iterable[tuple[str, Record]] | Path | Mapping[str, Path],
        *known: Documents,
        partitions: int = 1,
        slice_records: int | None = 10_000,
        log_time: str | None = None,
        drain: bool = True,
    ) -> DeskRun:
        """Run the pipeline over records, or a file of records, without a server, as `strandline pipeline run` does.

        If there are several streams, each record is a pair, `("turbines", record)`, or each stream has a file,
        `{"turbines": Path(...)}`. The order of the records is the order of the log. The log time is the event time, or the
        field `log_time`; files of several streams are merged by it. `drain`: close all windows at the end. Results do not
        depend on `slice_records`. Raises InvalidDocument as `check`, and BadRecord if a bad record stops the pipeline.
        """
        from strandline.processing.desk.desk import Desk, DeskResult, letter_fields
        from strandline.processing.desk.merged_files import merged_files
        from strandline.processing.desk.records import RECORDS_AT_ONCE, DeskRecords, Partitioner

        checked = self.check(*known)
        if isinstance(records, Path):
            if checked.has_several_inputs:
                each = ", ".join(f"'{name}': Path(...)" for name in checked.streams)
                raise TypeError(f"a file contains the records of one stream; pass a file for each stream: {{{each}}}")
            records = {checked.inputs[0].name: records}
        if isinstance(records, str | bytes) or (
            isinstance(records, Mapping) and not (records and all(isinstance(one, Path) for one in records.values()))
        ):
            raise TypeError("expected several records, or the Path of a file; put a single record into a list")
        desk = Desk(checked, slice_records, log_time=log_time)

        def there(name: str) -> str:
            if name not in checked.streams:
                raise ValueError(f"there is no stream '{name}' here{did_you_mean(name, checked.streams)}")
            return name

        read: Iterable[DeskRecords]
        if isinstance(records, Mapping):
            files = {there(name): file for name, file in records.items()}
            read = merged_files(checked, files, partitions, log_time)
        else:
            partitioners = {name: Partitioner(stream, partitions) for name, stream in checked.streams.items()}
            read = (
                DeskRecords(values, partitioners[there(name)].of_each(values), stream=name)
                for name, values in _pieces(records, checked.inputs[0].name, RECORDS_AT_ONCE)
            )

        def outcomes() -> Iterator[Outcome]:
            for piece in read:
                yield from desk.feed(piece)
            yield from desk.drain() if drain else desk.end_slice()

        results: list[dict[str, Any]] = []
        letters: list[dict[str, Any]] = []
        for one in outcomes():
            if isinstance(one, DeskResult):
                results.append(json.loads(one.document.source))
            else:
                letters.append(dict(letter_fields(one)))
        return DeskRun(results, letters, desk.counts.records)

    def yaml_documents(self) -> list[YamlDocument]:
        """Return the known documents of streams and lookups, and that of the pipeline, with the positions of their calls."""
        return [*self.known, self.document]


def record_bytes(record: Record) -> bytes:
    """Return the bytes that a sender would send. Raises TypeError if an object can't be represented in JSON."""
    if isinstance(record, bytes):
        return record
    if isinstance(record, str):
        return record.encode()
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"), default=_in_json).encode()


def _pieces(
    records: Iterable[Record] | Iterable[tuple[str, Record]], first: str, at_once: int
) -> Iterator[tuple[str, list[bytes]]]:
    """Yield consecutive records of one stream together. Records without a stream belong to the first stream."""
    named = (one if isinstance(one, tuple) else (first, one) for one in records)
    for stream, of_stream in groupby(named, key=lambda one: one[0]):
        while piece := [record_bytes(record) for _, record in islice(of_stream, at_once)]:
            yield stream, piece


def _in_json(value: object) -> object:
    if isinstance(
        value, date
    ):  # a datetime is also a date; without a zone, it has the zone of the field, as a string does
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{value!r} can't be represented in JSON; send a string or a number")
