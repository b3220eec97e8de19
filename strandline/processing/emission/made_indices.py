"""The indices that a job created, in the ledger, and the writers that use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.processing.source.opened_ledger import kept_ledger
from strandline.results.document import DocumentShape
from strandline.results.elasticsearch_writer import ElasticsearchWriter
from strandline.results.index_settings import IndexSettings
from strandline.results.writer import StoreWriter

if TYPE_CHECKING:
    from strandline.core.settings import Settings

WriterFactory = Callable[[DocumentShape, IndexSettings], StoreWriter]


@dataclass(frozen=True)
class IndicesInLedger:
    """The CreatedIndices of one job."""

    ledger_url: str
    """Without its password."""
    job: str

    def names(self) -> set[str]:
        with kept_ledger(self.ledger_url) as ledger:
            return ledger.result_indices(self.job)

    def add(self, index: str) -> None:
        with kept_ledger(self.ledger_url) as ledger:
            ledger.add_result_index(self.job, index)


def elasticsearch_writers(settings: Settings, job: str) -> WriterFactory:
    """Return a factory of the writers of one job's results to Elasticsearch."""
    from strandline.ledger.database import without_secrets

    url, made = settings.elasticsearch_url, IndicesInLedger(without_secrets(settings.ledger_url), job)

    def writer_of(shape: DocumentShape, index: IndexSettings) -> StoreWriter:
        return ElasticsearchWriter(url, shape, index, made)

    return writer_of
