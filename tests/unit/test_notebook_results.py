"""The requests of `spark.read.format("strandline")` to the index, over a double of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.ledger.ledger import Ledger
from strandline.processing.audit import index_reader
from strandline.processing.audit.index_reader import EndRange
from strandline.processing.formats.record_rows import RecordFormat
from strandline.processing.notebook import tables
from strandline.processing.notebook.request import request_of
from strandline.processing.notebook.tables import IndexPart, _indices, plan_table
from strandline.processing.pipelines.event_time import EventTimeSource
from strandline.processing.source.source_config import StreamDecoding
from strandline.results.generations import Generation, filter_of
from tests.support.control import BOTH, Api
from tests.support.ledgers import a_checkpoint, a_slice

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
    decoding = StreamDecoding("", RecordFormat("json", (), {}), (), EventTimeSource(None))
    for index, shown in _indices("http://e:9200", "minutes").items():
        assert (
            list(IndexPart("http://e:9200", index, shown, "power", ENDS, 9, None, decoding).read(pa.schema([]))) == []
        )
    assert asked == {
        "minutes-2026.09": {"bool": {"filter": [ENDS.query(), HIDDEN]}},
        "minutes.g2-2026.09": ENDS.query(),
    }


def document(minute: int, emission: int, job: str = "power") -> dict[str, Any]:
    """The result of one turbine and minute."""
    end = f"1970-01-01T00:{minute:02}:00.000Z"
    return {
        "@timestamp": end,
        "window": {"start": f"1970-01-01T00:{minute - 1:02}:00.000Z", "end": end},
        "turbine": "t-1",
        "n": emission,
        "strandline": {"job": job, "stage": "per_minute", "version": 1, "epoch": 1, "emission": emission},
    }


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Yield the ledger of a job that revises and has emitted two minutes in two slices."""
    opened = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    text = BOTH + "late: {revise: 30m}\n"
    assert Api(opened).outcomes(text) == ["created", "created"]
    epoch = opened.begin_run("power", 1).epoch
    for number in (1, 2):
        opened.plan_slice(a_slice(number, epoch))
        opened.commit_checkpoint(a_checkpoint(number, epoch))
    yield opened
    opened.close()


@pytest.fixture
def read(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, int]]]:
    """Plans a DataFrame of the results, and reads it from an index that then holds these documents: turbine and n of each."""

    def rows(*held: dict[str, Any]) -> list[tuple[str, int]]:
        hits = [
            {"_index": "turbine-minute-1970.01", "_id": str(at), "_source": one, "sort": [at]}
            for at, one in enumerate(held)
        ]
        pages = [hits, []]

        def request(_url: str, _method: str, path: str, **_: Any) -> Any:
            if path == "/_search":
                return {"_shards": {"failed": 0}, "hits": {"hits": pages.pop(0)}, "pit_id": "p"}
            aliases = {"turbine-minute-1970.01": {"aliases": {"turbine-minute": {}}}}
            return aliases if path.startswith("/_alias/") else {"id": "p"}

        monkeypatch.setattr(tables, "request", request)
        monkeypatch.setattr(index_reader, "request", request)
        asked = request_of(
            {"what": "results", "job": "power", "ledger": "sqlite:///-", "kafka": "-", "elasticsearch": "http://e:9200"}
        )
        table = plan_table(asked, ledger, None)  # type: ignore[arg-type]
        found = pa.Table.from_batches([one for part in table.parts for one in part.read(table.schema)], table.schema)
        return list(zip(found["turbine"].to_pylist(), found["n"].to_pylist(), strict=True))

    return rows


def test_a_window_that_is_revised_after_the_plan_is_there_once(read: Callable[..., list[tuple[str, int]]]) -> None:
    """The index holds the revised result alone. What later slices emit of windows that were open then is not in the DataFrame."""
    assert read(document(1, 1), document(2, 3), document(3, 3)) == [("t-1", 1), ("t-1", 3)]


def test_results_of_another_job_that_emitted_to_the_alias_are_not_read(
    read: Callable[..., list[tuple[str, int]]],
) -> None:
    assert read(document(1, 1), document(1, 2, job="other")) == [("t-1", 1)]
