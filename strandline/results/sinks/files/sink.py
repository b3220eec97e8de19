"""Rows of Parquet files by day, which count when a manifest contains them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from strandline.core.documents import Path
from strandline.results.sinks.sink import (
    EmittedFields,
    ResultsRequest,
    Sink,
    SinkRequest,
    StoredPart,
    own_names_problems,
)

if TYPE_CHECKING:
    from strandline.core.settings import Settings
    from strandline.results.writer import StoreWriter


class FilesSink(Sink):
    description = "Parquet files by day: {path, format}."
    named = "path"
    store_prefix = "files:"
    stored_word = "files"
    container = "the file"
    is_compared = True
    keeps_other_results = True
    counts_slices = True

    def document(self) -> Any:
        from strandline.results.sinks.files.document import FilesSpec

        return FilesSpec

    def problems(self, value: Any, emitted: EmittedFields, path: Path) -> Iterator[tuple[Path, str]]:
        return own_names_problems(emitted)

    def writer(self, request: SinkRequest) -> StoreWriter:
        from strandline.results.sinks.files.writer import FilesWriter

        return FilesWriter(request.name, request.shape)

    def emissions_from(
        self, settings: Settings, job: str, stage: str, name: str, first: int
    ) -> Sequence[tuple[int, str]] | None:
        from strandline.results.sinks.files.writer import newest_manifests, read_manifest

        newest = [read_manifest(name, one) for one in newest_manifests(name, job, stage)[-1:]]
        return [(one.emission, one.slice_digest) for one in newest]

    def counts(self, settings: Settings, job: str, stored: str, first: int) -> Mapping[int, int] | None:
        from strandline.results.sinks.files.writer import emission_of, newest_manifests

        stage, _, path = stored.partition(" ")
        numbers = map(emission_of, newest_manifests(path, job, stage, first))
        return Counter(number for number in numbers if number is not None and number >= first)

    def result_parts(self, settings: Settings, request: ResultsRequest) -> Sequence[StoredPart] | None:
        from strandline.results.sinks.files.reader import files_parts

        return files_parts(request)

    def position(self, index: str, time_ms: int) -> str:
        from strandline.results.sinks.files.writer import day_directory

        return day_directory(time_ms)


SINK = FilesSink()
