"""An audit reads the documents of its aliases, over a double of the index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from strandline.processing.audit import index_reader
from strandline.processing.audit.index_reader import EndRange
from strandline.processing.audit.stores import ROWS_SCHEMA, index_parts
from strandline.processing.audit_queries.table import Table

URL = "http://e:9200"


@pytest.mark.guarantee(
    "G60",
    "The audit finds and names each document that is missing, extra, in a wrong index, or in two indices. It also "
    "names documents with a changed count or a float changed by more than 1e-9, and extra dead letters. It reports "
    "nothing else, also if another job emits to the alias.",
    promise="the-audit-finds-every-difference",
)
def test_documents_with_another_jobs_name_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An alias can pass from one living job to another. The documents of both are then in the same indices."""
    origins = {"own": {"job": "power"}, "heats": {"job": "heat"}, "by-hand": {"stage": "minute"}, "bare": "power"}
    hits = [
        {"_index": "minutes-2026.09", "_id": name, "_source": {"n": 1, "strandline": origin}, "sort": [1]}
        for name, origin in origins.items()
    ]

    def request(_url: str, _method: str, _path: str, *, body: Any, **_: Any) -> Any:
        page = [] if body["size"] == 0 or "search_after" in body else hits
        return {"hits": {"hits": page, "total": {"value": len(hits)}}, "pit_id": "p", "_shards": {"failed": 0}}

    monkeypatch.setattr(index_reader, "request", request)
    compared = Table(tmp_path / "compared", ROWS_SCHEMA)
    compared.create()
    for part in index_parts(URL, "power", {"minutes": "p"}, EndRange(), compared):
        part.run()
    assert pq.read_table(compared.directory)["id"].to_pylist() == ["own", "by-hand", "bare"]


def test_aliases_are_read_by_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Reading keeps a snapshot alive. That of the second alias would expire while a large first one is read to its end."""
    documents = {"p-minutes": 250_000, "p-hours": 7, "p-days": 150_000}

    def request(_url: str, _method: str, _path: str, *, body: Any, **_: Any) -> Any:
        return {"hits": {"total": {"value": documents[body["pit"]["id"]]}}}

    monkeypatch.setattr(index_reader, "request", request)
    snapshots = {name.removeprefix("p-"): name for name in documents}
    parts = index_parts(URL, "power", snapshots, EndRange(), Table(tmp_path, ROWS_SCHEMA))
    assert [(one.store, one.part) for one in parts] == [
        ("minutes", 0),
        ("hours", 0),
        ("days", 0),
        ("minutes", 1),
        ("days", 1),
        ("minutes", 2),
    ]
