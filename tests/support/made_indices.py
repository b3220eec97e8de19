"""CreatedIndices in memory, and writers that use it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from strandline.results.document import DocumentShape
from strandline.results.elasticsearch_writer import ElasticsearchWriter
from strandline.results.index_settings import INDEX_SETTINGS_DEFAULT, IndexSettings


@dataclass
class MadeInMemory:
    """Forgets with the test."""

    held: set[str] = field(default_factory=set)

    def names(self) -> set[str]:
        return set(self.held)

    def add(self, index: str) -> None:
        self.held.add(index)


def writer_with_indices(
    url: str,
    shape: DocumentShape,
    made: MadeInMemory | None = None,
    settings: IndexSettings = INDEX_SETTINGS_DEFAULT,
    **bounds: Any,
) -> ElasticsearchWriter:
    """A writer that makes its indices. `bounds` are fields of ElasticsearchWriter."""
    return ElasticsearchWriter(url, shape, settings, made if made is not None else MadeInMemory(), **bounds)
