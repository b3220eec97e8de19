"""A pipeline that Python built: its document, its check, and a run over records at the desk."""

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

if TYPE_CHECKING:  # what computes is loaded when something is computed
    from strandline.processing.desk.desk import Outcome
    from strandline.processing.pipelines.checked_pipeline import CheckedPipeline


class Documents(Protocol):
    """A pipeline or a stream."""

    def yaml_documents(self) -> list[YamlDocument]:
        """Its documents, as they were said, each with the places of the calls that said it."""


Record = Mapping[str, Any] | str | bytes
"""An object, which becomes JSON, or the bytes or text that a sender would send."""


@dataclass(frozen=True)
class DeskRun:
    """What came of a run at the desk."""

    results: list[dict[str, Any]]
    """The documents, as they would stand in the store, in the order in which they would be emitted."""
    dead_letters: list[dict[str, Any]]
    """`reason`, `message`, `step`, where it stands, `value`."""
    records: int
    """How many were read; rows, where a record is several."""

    def of(self, stage: str) -> list[dict[str, Any]]:
        """The documents of one stage."""
        return [one for one in self.results if one["strandline"]["stage"] == stage]


@dataclass(frozen=True, repr=False)
class Pipeline:
    """A pipeline that is right as far as its text alone tells. `check` compares it with its stream."""

    document: YamlDocument
    """As it was said, without defaults, with the place of each step."""
    known: tuple[YamlDocument, ...] = ()
    """Those of its streams and lookups, as far as they are known."""
    spec: PipelineSpec = field(init=False, compare=False)
    """The model that all ways of writing a pipeline share."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", PipelineSpec.parse(self.document))

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}>"

    @property
    def name(self) -> str:
        """Of the pipeline, and of its job."""
        return self.document.name

    def as_document(self) -> dict[str, object]:
        """The canonical document: with its defaults, as plain data. The same for YAML, SQL and Python."""
        return self.spec.as_document()

    def to_yaml(self) -> str:
        """The pipeline, and its streams and lookups as far as they are known, as a file for `strandline apply`."""
        return write_documents(document.data for document in self.yaml_documents())

    def check(self, *known: Documents) -> CheckedPipeline:
        """Compare the pipeline with its streams: columns, types, how windows fit. Needs no server.

        `known`: the stream, or the pipeline that emits it, where `stream()` was given a name only. Raises InvalidDocument
        with every problem, each with the file and line of its step.
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
        """Run the pipeline over records, or a file of them, without any server: what `strandline pipeline run` does.

        Of several streams each record is a pair, `("turbines", record)`, or each stream has a file, `{"turbines": Path(...)}`.
        The order of the records is the order of the log, and log time is event time, or the field `log_time`; by it the files of
        several streams are merged. `drain`: close all windows at the end. Results do not depend on
        `slice_records`. Raises InvalidDocument as `check`, and BadRecord where the pipeline ends at a bad record.
        """
        from strandline.processing.desk.desk import Desk, DeskResult, letter_fields
        from strandline.processing.desk.merged_files import merged_files
        from strandline.processing.desk.records import RECORDS_AT_ONCE, DeskRecords, Placement

        checked = self.check(*known)
        if isinstance(records, Path):
            if checked.has_several_inputs:
                each = ", ".join(f"'{name}': Path(...)" for name in checked.streams)
                raise TypeError(f"a file holds the records of one stream; give a file for each: {{{each}}}")
            records = {checked.inputs[0].name: records}
        if isinstance(records, str | bytes) or (
            isinstance(records, Mapping) and not (records and all(isinstance(one, Path) for one in records.values()))
        ):
            raise TypeError("expected several records, or the Path of a file; one record stands in a list")
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
            placements = {name: Placement(stream, partitions) for name, stream in checked.streams.items()}
            read = (
                DeskRecords(values, placements[there(name)].of_each(values), stream=name)
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
        """The documents of streams and lookups that are known, and the pipeline's, each with the places of its calls."""
        return [*self.known, self.document]


def record_bytes(record: Record) -> bytes:
    """The bytes that a sender would send. Raises TypeError for an object that has no form in JSON."""
    if isinstance(record, bytes):
        return record
    if isinstance(record, str):
        return record.encode()
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"), default=_in_json).encode()


def _pieces(
    records: Iterable[Record] | Iterable[tuple[str, Record]], first: str, at_once: int
) -> Iterator[tuple[str, list[bytes]]]:
    """Records in a row that come to one stream, which is the first one where nothing else is said."""
    named = (one if isinstance(one, tuple) else (first, one) for one in records)
    for stream, of_stream in groupby(named, key=lambda one: one[0]):
        while piece := [record_bytes(record) for _, record in islice(of_stream, at_once)]:
            yield stream, piece


def _in_json(value: object) -> object:
    if isinstance(value, date):  # a datetime is one; without a zone it has that of the field, as a text has
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{value!r} has no form in JSON; send a text or a number")
