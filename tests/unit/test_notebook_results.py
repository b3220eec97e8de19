"""What `spark.read.format("strandline")` asks the index for, over a double of it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from strandline.processing.audit import index_reader
from strandline.processing.audit.index_reader import EndRange
from strandline.processing.formats.record_rows import RecordFormat
from strandline.processing.notebook import tables
from strandline.processing.notebook.tables import IndexPart, _indices
from strandline.processing.pipelines.event_time import EventTimeSource
from strandline.processing.source.source_config import DecodingConfig
from strandline.results.generations import Generation, filter_of

HIDDEN = filter_of([Generation(2, 0, 60_000)], 1)
ENDS = EndRange(None, 90_000)


def test_windows_that_a_backfill_has_replaced_are_not_read_from_the_older_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}

    def request(_url: str, _method: str, path: str, *, body: Any = None, **_: Any) -> Any:
        if path == "/_alias/minutes":
            filters = {"minutes.g2-2026.09": {}, "minutes-2026.09": {"filter": HIDDEN}}
            return {index: {"aliases": {"minutes": of_alias}} for index, of_alias in filters.items()}
        if path == "/_search":
            asked[body["pit"]["id"]] = body["query"]
            return {"_shards": {"failed": 0}, "hits": {"hits": []}}
        return {"id": path.split("/")[1]}

    monkeypatch.setattr(tables, "request", request)
    monkeypatch.setattr(index_reader, "request", request)
    decoding = DecodingConfig("", RecordFormat("json", (), {}), (), EventTimeSource(None))
    for index, shown in _indices("http://e:9200", "minutes").items():
        assert list(IndexPart("http://e:9200", index, shown, "power", ENDS, 9, decoding).read(pa.schema([]))) == []
    assert asked == {
        "minutes-2026.09": {"bool": {"filter": [ENDS.query(), HIDDEN]}},
        "minutes.g2-2026.09": ENDS.query(),
    }
