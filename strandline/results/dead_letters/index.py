"""The index of a job's dead letters: a copy of the newest dead letters of its stream, for searches and Kibana.

- The id of a dead letter is its position in the stream, and it is only created: copied twice, it is stored once.
- The progress of the copy is stored in the index itself, so an index that is deleted is filled again.
- The index contains only documents of one mapping: no request creates the index implicitly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.core.errors import IndexMisconfigured, IndexUnavailable
from strandline.results.bulk import Bulk
from strandline.results.bulk_answer import ItemOutcome, read_bulk_answer
from strandline.results.dead_letters.documents import DEAD_LETTER_MAPPING
from strandline.results.document import Document
from strandline.results.elasticsearch_client import NDJSON, RequestRefused, decode, request, request_bytes
from strandline.results.index_settings import INDEX_SETTINGS_DEFAULT
from strandline.results.names import dead_letter_index, write_alias

_TIMEOUT_S = 10.0
_TEMPLATE = "/_index_template/strandline.dead-letters"
_PRIORITY = 1_000
"""Priority above every template of results: the template of `turbine` matches `turbine-health.dead-letters`, and would
add its alias."""
_DELETED_AT_ONCE = 5_000
_DONE = (ItemOutcome.CREATED, ItemOutcome.EXISTS)
_AGAIN = (ItemOutcome.RETRY, ItemOutcome.NO_INDEX)


class DeadLetterIndex:
    """The index of one job.

    Every method raises IndexUnavailable if Elasticsearch doesn't respond, and RequestRefused or IndexMisconfigured if
    an operator must fix the cause.
    """

    def __init__(self, url: str, job: str) -> None:
        self._url = url
        self.name = dead_letter_index(job)

    def copied(self) -> dict[str, int]:
        """Return for each dead-letter topic, by id, the number of its first dead letter that isn't copied.

        Creates a missing index.
        """
        try:
            found = self._ask("GET", f"/{self.name}/_mapping")
        except RequestRefused as error:
            if error.error_type != "index_not_found_exception":
                raise
            self._make()
            return {}
        held: dict[str, int] = found[self.name]["mappings"].get("_meta", {}).get("copied", {})
        return held

    def remember(self, topic_id: str, number_next: int) -> None:
        """Record the progress of the copy. Call it only when all earlier dead letters are in the index.

        A copier that was delayed can record less progress than was made. Then the next copier copies some again, and
        omits none.
        """
        self._ask("PUT", f"/{self.name}/_mapping", {"_meta": {"copied": {topic_id: number_next}}})

    def create(self, documents: Sequence[Document]) -> int:
        """Create the missing documents. Return how many were missing. All are in the index when it returns."""
        bulk = Bulk.of(documents)
        parameters = {"filter_path": "items.*.status,items.*._id,items.*._index,items.*.error", "require_alias": "true"}
        items = read_bulk_answer(self._bulk(bulk.body, parameters), documents)
        for item in items:
            if item.outcome in _DONE:
                continue
            said = f"index {self.name} did not accept dead letter {item.document.id}: {item.status} {item.type}: {item.reason}"
            raise IndexUnavailable(said) if item.outcome in _AGAIN else IndexMisconfigured(said)
        return sum(item.outcome is ItemOutcome.CREATED for item in items)

    def forget(self, before_ms: int, topic_id: str, before_number: int) -> int:
        """Delete some of the documents that were written before `before_ms` or have a lower number. Return how many."""
        old = [
            {"range": {"@timestamp": {"lt": before_ms, "format": "epoch_millis"}}},
            {"bool": {"filter": [{"term": {"topic_id": topic_id}}, {"range": {"number": {"lt": before_number}}}]}},
        ]
        body = {"size": _DELETED_AT_ONCE, "_source": False, "query": {"bool": {"should": old}}}
        hits = self._ask("POST", f"/{self.name}/_search", body)["hits"]["hits"]
        if hits:
            lines = "".join(f'{{"delete":{{"_index":"{self.name}","_id":"{hit["_id"]}"}}}}\n' for hit in hits)
            self._bulk(
                lines.encode(), {"filter_path": "errors", "refresh": "true"}
            )  # documents that were not deleted are found again
        return len(hits)

    def _make(self) -> None:
        """Create the index. Several processes may do this at the same time."""
        settings, aliases = INDEX_SETTINGS_DEFAULT.as_settings(), {write_alias(self.name): {"is_hidden": True}}
        body = {"settings": settings, "mappings": DEAD_LETTER_MAPPING, "aliases": aliases}
        # The aliases of a template are added to those of the request, so no other template may match.
        self._ask("PUT", _TEMPLATE, {"index_patterns": [dead_letter_index("*")], "priority": _PRIORITY, "template": {}})
        try:
            self._ask("PUT", f"/{self.name}", body)
        except RequestRefused as error:
            if error.error_type != "resource_already_exists_exception":
                raise

    def _bulk(self, body: bytes, parameters: dict[str, str]) -> Any:
        sent = request_bytes(
            self._url, "POST", "/_bulk", timeout_s=_TIMEOUT_S, parameters=parameters, body=body, content_type=NDJSON
        )
        return decode(sent)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return request(self._url, method, path, timeout_s=_TIMEOUT_S, body=body)
