"""The index of one emission's open windows, `NAME.open`: documents are overwritten as windows fill, and deleted when
they have closed.

This index isn't exactly once, and doesn't need to be: the next update or the next sweep corrects missing and remaining
documents. An update never overwrites a later one: the number of its slice is the document's version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from strandline.core.errors import Conflict
from strandline.results.elasticsearch_client import NDJSON, RequestRefused, request
from strandline.results.index_settings import INDEX_SETTINGS_DEFAULT, IndexSettings
from strandline.results.mapping import build_mapping, find_lacking, is_ours, make_index, template_path
from strandline.results.names import open_index
from strandline.results.open_windows.documents import OpenShape

_TIMEOUT_S = 10.0
_PRIORITY = 1_000
"""Priority above every template of results: the template of `turbine` matches `turbine-minute.open`, and would add its
alias."""
_OVERTAKEN = 409
_DELETED_AT_ONCE = 5_000


class OpenIndex:
    """The open-window index of one emission.

    Every method sends its requests once, and raises IndexUnavailable if Elasticsearch doesn't respond. They raise
    RequestRefused or Conflict if an operator must fix the cause.
    """

    def __init__(self, url: str, emit_name: str) -> None:
        self._url = url
        self._emit_name = emit_name
        self.name = open_index(emit_name)

    def make_sure(self, shape: OpenShape, settings: IndexSettings = INDEX_SETTINGS_DEFAULT) -> None:
        """Make sure that the index exists and accepts documents of this shape.

        An index for other documents is recreated: all its documents will be shown again.
        """
        mapping = build_mapping(shape)
        parameters = {"expand_wildcards": "all", "ignore_unavailable": "true"}
        found = self._ask("GET", f"/{self.name}", parameters=parameters)
        if found and self.name not in found:
            raise self._foreign(f"{self.name} is an alias of {', '.join(sorted(found))}")
        if found:
            if not is_ours(found[self.name]["mappings"]):
                raise self._foreign(f"index {self.name} is not Strandline's")
            try:
                if not find_lacking(found, mapping):
                    return
            except Conflict:  # a field has another type there
                pass
            self._ask("DELETE", f"/{self.name}", parameters={"ignore_unavailable": "true"})
        # The aliases of a template are added to those of the request, so no other template may match.
        own = {"index_patterns": [self.name], "priority": _PRIORITY, "template": {}, "_meta": mapping["_meta"]}
        self._ask("PUT", template_path(self.name), own)
        settings = replace(settings, lifecycle=None)
        make_index(self._url, self.name, self._emit_name, mapping, is_shown=False, settings=settings)

    def write(self, documents: Mapping[str, bytes], gone: Sequence[str], number: int) -> int:
        """Write these documents (by id) over existing ones, and delete the documents in `gone`. Return how many the
        store refused.

        Args: number: Number of the slice of the documents.
        """
        alias = f"{self.name}.write"
        lines: list[bytes] = []
        for identity, source in documents.items():
            place = {"_index": alias, "_id": identity, "version": number, "version_type": "external_gte"}
            lines += [msgspec.json.encode({"index": place}), source]
        lines += [msgspec.json.encode({"delete": {"_index": alias, "_id": identity}}) for identity in gone]
        if not lines:
            return 0
        parameters = {"filter_path": "items.*.status", "require_alias": "true"}
        items = self._bulk(lines, parameters).get("items", [])
        statuses = [one["index"]["status"] for one in items if "index" in one]
        return sum(status >= 300 and status != _OVERTAKEN for status in statuses)

    def forget_closed(self, job: str, closes_ms: int | None) -> int:
        """Delete some of the job's documents of windows that end at or before this time, or of all windows if it is
        None.

        Returns the number of deleted documents: 0 also if the store accepts no deletes now.
        """
        try:
            self._ask("POST", f"/{self.name}/_refresh")
        except RequestRefused as error:
            if error.status == 404:
                return 0
            raise
        filters: list[Any] = [{"term": {"strandline.job": job}}]
        if closes_ms is not None:
            filters.append({"range": {"@timestamp": {"lte": closes_ms, "format": "epoch_millis"}}})
        query = {"bool": {"filter": filters}}
        body = {"size": _DELETED_AT_ONCE, "_source": False, "query": query}
        hits = self._ask("POST", f"/{self.name}/_search", body)["hits"]["hits"]
        if not hits:
            return 0
        lines = [msgspec.json.encode({"delete": {"_index": self.name, "_id": hit["_id"]}}) for hit in hits]
        items = self._bulk(lines, {"filter_path": "items.*.status"}).get("items", [])
        return sum(one["delete"]["status"] < 300 for one in items)

    def _foreign(self, what: str) -> Conflict:
        return Conflict(
            f"{what}, and open windows of {self._emit_name} need that name; rename or delete it, or emit without updates"
        )

    def _bulk(self, lines: Sequence[bytes], parameters: dict[str, str]) -> Any:
        body = b"\n".join([*lines, b""])
        return request(
            self._url,
            "POST",
            "/_bulk",
            timeout_s=_TIMEOUT_S,
            parameters=parameters,
            body=body,
            content_type=NDJSON,
        )

    def _ask(self, method: str, path: str, body: Any = None, parameters: dict[str, str] | None = None) -> Any:
        return request(self._url, method, path, timeout_s=_TIMEOUT_S, parameters=parameters, body=body)
