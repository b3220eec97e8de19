"""Documents in monthly indices of Elasticsearch. `results/elasticsearch_writer.py` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from strandline.core.documents import Path
from strandline.results.index_settings import IndexSettings
from strandline.results.sinks.sink import EmittedFields, Sink

if TYPE_CHECKING:
    from strandline.core.settings import Settings


class ElasticsearchSink(Sink):
    description = (
        "An alias in Elasticsearch; the indices are `NAME-yyyy.MM` by the window's end. A name, or {name, shards, replicas,\n"
        "refresh_interval, lifecycle, updates}."
    )
    has_short_form = True
    stored_word = "index"
    has_generations = True
    merges_slices = True
    container = "the index"
    is_compared = True

    def document(self) -> Any:
        from strandline.results.sinks.elasticsearch.document import IndexSpec

        return IndexSpec

    def index_settings(self, value: Any) -> IndexSettings:
        settings: IndexSettings = value.settings
        return settings

    def problems(self, value: Any, emitted: EmittedFields, path: Path) -> Iterator[tuple[Path, str]]:
        if value.updates is not None and emitted.no_updates:
            yield (*path, "updates"), f"{emitted.no_updates}; remove it"

    def away(self, settings: Settings, timeout_s: float) -> str | None:
        from strandline.results.elasticsearch_client import is_writable

        return None if is_writable(settings.elasticsearch_url, timeout_s) else "Elasticsearch"


SINK = ElasticsearchSink()
