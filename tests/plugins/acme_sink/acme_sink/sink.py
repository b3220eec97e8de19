"""`{sink: {use: arrow, name: NAME}}`: the contract. See `writer` for the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.results.sinks.sink import ResultsRequest, Sink, SinkRequest, StoredFile, StoredPart, StoredRows

if TYPE_CHECKING:
    from strandline.core.settings import Settings
    from strandline.results.writer import StoreWriter


@dataclass(frozen=True)
class ArrowPart:
    """One file, for an audit."""

    name: str
    path: Path

    @property
    def rows(self) -> int:
        return 1_000

    def read(self) -> Iterator[StoredRows | StoredFile]:
        from acme_sink.writer import read_file

        yield StoredRows(f"arrow:{self.name}/{self.path.name}", read_file(self.path).to_pylist())


class ArrowSink(Sink):
    container = "the Arrow file"
    is_compared = True
    keeps_other_results = True
    counts_slices = True

    def writer(self, request: SinkRequest) -> StoreWriter:
        from acme_sink.writer import ArrowWriter, directory_of

        return ArrowWriter(directory_of(request.name), request.name, request.shape)

    def emissions_from(
        self, settings: Settings, job: str, stage: str, name: str, first: int
    ) -> Sequence[tuple[int, str]] | None:
        from acme_sink.writer import digest_of, directory_of, files_of

        files = files_of(directory_of(name), job, stage)
        return [(emission, digest_of(path)) for emission, path in files if emission >= first]

    def counts(self, settings: Settings, job: str, stored: str, first: int) -> Mapping[int, int] | None:
        from acme_sink.writer import directory_of, files_of, read_file

        name, _, stage = stored.partition(" ")
        files = files_of(directory_of(name), job, stage)
        return {emission: read_file(path).num_rows for emission, path in files if emission >= first}

    def result_parts(self, settings: Settings, request: ResultsRequest) -> Sequence[StoredPart] | None:
        from acme_sink.writer import directory_of, files_of

        directory = directory_of(request.name)
        if not directory.is_dir():
            return None
        files = [one for stage in request.stages for one in files_of(directory, request.job, stage)]
        return [ArrowPart(request.name, path) for emission, path in files if emission >= request.emission_first]


SINK = ArrowSink()
