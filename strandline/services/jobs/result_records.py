"""Log positions of the records of a result, from the slices in the ledger. No record is read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from strandline.core.described import Described
from strandline.core.errors import NotFound
from strandline.ledger.roles import LedgerReader
from strandline.processing.pipelines.event_time import first_event
from strandline.processing.pipelines.stored import load_pipeline
from strandline.results.elasticsearch_client import RequestRefused, request

_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class OffsetRangeView(Described):
    """Range of one partition: from `offset_first` up to, but not including, `offset_next`."""

    stream: str
    partition: int
    offset_first: int
    offset_next: int


@dataclass(frozen=True)
class ResultRecordsView(Described):
    """Log positions of the records of one result. The ranges contain all of them, and other records of the same time."""

    alias: str
    document: str
    """Id of the result."""
    job: str
    stage: str
    version: int
    """Version of the pipeline that computed it."""
    window_start_ms: int
    window_end_ms: int
    from_ms: int
    """Earliest event time that counts in it: the start of the window, or earlier if an earlier stage has sliding windows."""
    slice_first: int
    slice_last: int
    """Last slice with records of the result. Records in later slices were late for it."""
    ranges: list[OffsetRangeView]


def result_records(
    ledger: LedgerReader, elasticsearch_url: str, job: str, alias: str, document: str
) -> ResultRecordsView:
    """Return the offset ranges that contain every record of one result, and other records.

    1. Find the document by its alias: its window, its stage, and the version and the slice that wrote it.
    2. Compute the earliest event time that it can contain, from the windows of its stage and of earlier stages.
    3. Slices before any event reached that time contain none of its records. Slices after the slice that closed its window also
       contain none, because such records are late for it.

    Raises NotFound if the result doesn't exist, or if its slices were removed from the ledger; IndexUnavailable,
    RequestRefused.
    """
    found = _find(elasticsearch_url, alias, document)
    if "window" not in found:
        return _of_record(job, alias, document, found)
    origin, window = found["strandline"], {name: _ms(text) for name, text in found["window"].items()}
    pipeline = load_pipeline(ledger, job, origin["version"])
    number = [stage.name for stage in pipeline.stages].index(origin["stage"])
    from_ms = first_event(pipeline.windows[: number + 1], window["end"] - 1)
    slice_first, slice_last = ledger.first_slice_reaching(job, from_ms), origin["emission"]
    first, last = (ledger.slices(job, one, one) for one in (slice_first or 0, slice_last))
    if not first or not last or first[0].number <= ledger.floor(job):
        raise NotFound(
            f"the ledger no longer contains the slices of result {document} of {alias}, because old slices are removed. "
            f"Its window begins at {found['window']['start']}; search the stream by log time"
        )
    return ResultRecordsView(
        alias=alias,
        document=document,
        job=job,
        stage=origin["stage"],
        version=origin["version"],
        window_start_ms=window["start"],
        window_end_ms=window["end"],
        from_ms=from_ms,
        slice_first=first[0].number,
        slice_last=slice_last,
        ranges=[
            OffsetRangeView(
                stream=stream,
                partition=partition,
                offset_first=first[0].offsets_first.get(stream, {}).get(partition, 0),
                offset_next=offset_next,
            )
            for stream, ends in last[0].offsets.items()
            for partition, offset_next in sorted(ends.items())
        ],
    )


def _of_record(job: str, alias: str, document: str, found: dict[str, Any]) -> ResultRecordsView:
    """Return the position of a record, which its own document contains."""
    origin, at_ms = found["strandline"], _ms(found["@timestamp"])
    return ResultRecordsView(
        alias=alias,
        document=document,
        job=job,
        stage=origin["stage"],
        version=origin["version"],
        window_start_ms=at_ms,
        window_end_ms=at_ms,
        from_ms=at_ms,
        slice_first=origin["emission"],
        slice_last=origin["emission"],
        ranges=[
            OffsetRangeView(
                stream=origin["stream"],
                partition=origin["partition"],
                offset_first=origin["offset"],
                offset_next=origin["offset"] + 1,
            )
        ],
    )


def origin_of(elasticsearch_url: str, alias: str, document: str) -> dict[str, Any]:
    """Return the field `strandline` of a result: its stage, its version, and its slice; for an emitted record also its position.

    Raises NotFound if the result doesn't exist; IndexUnavailable, RequestRefused."""
    origin: dict[str, Any] = _find(elasticsearch_url, alias, document)["strandline"]
    return origin


def _find(url: str, alias: str, document: str) -> dict[str, Any]:
    body = {"size": 1, "query": {"ids": {"values": [document]}}, "_source": ["@timestamp", "window", "strandline"]}
    hits: list[dict[str, Any]] = []
    try:
        hits = request(url, "POST", f"/{alias}/_search", timeout_s=_TIMEOUT_S, body=body)["hits"]["hits"]
    except RequestRefused as error:
        if error.error_type != "index_not_found_exception":  # before the first window closes, there is no index
            raise
    if not hits:
        raise NotFound(f"{alias} shows no result {document}; its id is the _id of a document in Elasticsearch")
    source: dict[str, Any] = hits[0]["_source"]
    return source


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
