"""Everything that a job left, read with plain clients: the stream, the dead letters, the ledger's tables, the
documents.

Imports nothing of the platform. A dump can be stored in a file, to be checked again or spoilt on purpose.
"""

from __future__ import annotations

import base64
import gzip
import json
import sqlite3
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

Row = dict[str, Any]
TABLES = {
    "slices": "number",
    "checkpoints": "slice",
    "runs": "epoch",
    "events": "id",
    "job_versions": "version",
    "backfills": "generation",
}
"""What is read of the ledger, and the column that puts it in order."""
_JSON_COLUMNS = frozenset(
    [
        "offsets_first",
        "offsets",
        "emitted",
        "rejected",
        "results",
        "dead_letter_offsets",
        "facts",
        "result_offsets",
        "rejected_total",
        "results_total",
        "rule",
        "reached",
        "silence_ms",
        "windows",
        "refused",
        "lookup_versions",
        "sessions",
    ]
)
_STALLED_S = 60.0


@dataclass
class Record:
    """A record as a topic holds it."""

    partition: int
    offset: int
    log_time_ms: int
    key: bytes | None
    value: bytes
    headers: dict[str, str]


@dataclass
class Dump:
    records: list[Record]
    dead_letters: list[Record]
    tables: dict[str, list[Row]]
    """Tables of this job by name. Columns with JSON are decoded."""
    documents: list[Row]
    """Each with `_index`, `_id`, `_version` and `_source`."""
    documents_deleted: int
    """Over all indices, as the store counts them; an overwritten document counts too."""
    results: list[Record] | None = None
    """The results of the first stage as its stream holds them; None where they were not looked at."""
    log_starts: dict[str, int] = field(default_factory=dict)
    """Partition -> where the stream begins; empty where it was not looked at."""
    log_ends: dict[str, int] = field(default_factory=dict)
    read_from: dict[str, int] = field(default_factory=dict)
    """Partition -> where the stream began when the job first ran, where something had been cut off by then."""
    kafka_away: list[tuple[int, int]] = field(default_factory=list)
    """When no broker answered: from, to, in ms of the wall clock."""
    speed: int = 20
    """Speed of event time, in seconds per second; the sizes of the windows depend on it."""
    log_time_steps: list[tuple[int, int, int, float]] = field(default_factory=list)
    """Intervals in which the broker's clock was wrong: from, to, ms ahead at the beginning (more than the length of the
    run), and seconds per second."""
    silence_drifts: list[tuple[int, int, float]] = field(default_factory=list)
    """When the clock that counts silence ran fast: from, to, how many seconds in a second."""
    ledger_times_jump: bool = False
    """True if the clock of the job's machine was set: then the times in the ledger don't show the order of events."""
    lookups_applied: list[tuple[int, int]] = field(default_factory=list)
    """For a job with a lookup: each version, and the time of the answer that it is applied, in ms of the wall clock."""
    backfilled: list[Row] = field(default_factory=list)
    """The documents of backfills."""
    shown: dict[str, list[str]] | None = None
    """Stage -> index and id of each document that its alias shows; None where it was not looked at."""

    def save(self, path: Path) -> None:
        with gzip.open(path, "wt", encoding="ascii") as file:
            json.dump(asdict(self), file, default=lambda value: base64.b64encode(value).decode())

    @classmethod
    def load(cls, path: Path) -> Dump:
        with gzip.open(path, "rt", encoding="ascii") as file:
            fields = json.load(file)
        for topic in ("records", "dead_letters", "results"):
            fields[topic] = fields[topic] and [
                Record(
                    **row
                    | {name: None if row[name] is None else base64.b64decode(row[name]) for name in ("key", "value")}
                )
                for row in fields[topic]
            ]
        for name in ("kafka_away", "log_time_steps", "silence_drifts", "lookups_applied"):
            fields[name] = [tuple(one) for one in fields.get(name, [])]
        return cls(**fields)


def take_dump(
    job: str,
    stream: str,
    stages: Sequence[str],
    results_stream: str | None,
    *,
    bootstrap: str,
    ledger_url: str,
    index_url: str,
) -> Dump:
    """Read everything, each topic to its end. Raises AssertionError when a part can't be read whole."""
    # By pattern, not by alias: a document in an index that the alias doesn't know would else never be seen.
    documents, deleted = _documents(index_url, [f"{job}-{stage}-*" for stage in stages])
    backfilled, backfilled_deleted = _documents(index_url, [f"{job}-{stage}.g*-*" for stage in stages])
    shown = {
        stage: [f"{hit['_index']}/{hit['_id']}" for hit in _hits(index_url, f"{job}-{stage}", {"_source": False})]
        for stage in stages
    }
    tables = {
        table: query(ledger_url, f"SELECT * FROM {table} WHERE job = '{job}' ORDER BY {order}")
        for table, order in TABLES.items()
    }
    records, letters = (_topic(bootstrap, name) for name in (stream, f"{job}.dead-letter"))
    results = None if results_stream is None else _topic(bootstrap, results_stream)
    starts, ends = _bounds(bootstrap, stream)
    deleted += backfilled_deleted
    made_again = {"backfilled": backfilled, "shown": shown}
    return Dump(records, letters, tables, documents, deleted, results, starts, ends, **made_again)  # type: ignore[arg-type]


def query(ledger_url: str, statement: str) -> list[Row]:
    """The rows of one statement. Raises sqlite3.OperationalError or psycopg.OperationalError when it can't be asked now."""
    if ledger_url.startswith("sqlite:///"):
        # Not read-only: the first process after a kill must roll back the unfinished write.
        connection = sqlite3.connect(ledger_url.removeprefix("sqlite:///"), timeout=10)
        try:
            connection.row_factory = sqlite3.Row
            rows = [dict(row) for row in connection.execute(statement)]
        finally:
            connection.close()
    else:
        url = ledger_url.replace("+psycopg", "")
        with psycopg.connect(url, row_factory=psycopg.rows.dict_row, connect_timeout=5) as server:
            rows = server.execute(statement.encode()).fetchall()
    return [{name: _parsed(name, value) for name, value in row.items()} for row in rows]


def _parsed(column: str, value: Any) -> Any:
    return json.loads(value) if column in _JSON_COLUMNS and isinstance(value, str) else value


def _topic(bootstrap: str, topic: str) -> list[Record]:
    """Every committed record, in order."""
    return sorted(_read(bootstrap, topic), key=lambda record: (record.partition, record.offset))


def _bounds(bootstrap: str, topic: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return the start and end of each partition of the topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "dump", "log_level": 2})
    try:
        bounds = {
            str(partition): consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_STALLED_S)
            for partition in consumer.list_topics(topic, timeout=_STALLED_S).topics[topic].partitions
        }
    finally:
        consumer.close()
    return {one: start for one, (start, _) in bounds.items()}, {one: end for one, (_, end) in bounds.items()}


def _read(bootstrap: str, topic: str) -> Iterator[Record]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "dump",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "check.crcs": True,
            "log_level": 2,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=_STALLED_S).topics[topic].partitions
        assert partitions, f"topic {topic} has no partitions"
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        ended: set[int] = set()
        progress_s = time.monotonic()
        while len(ended) < len(partitions):
            for message in consumer.consume(10_000, 0.1):
                error = message.error()
                if error is None:
                    headers = {name: (value or b"").decode() for name, value in message.headers() or []}
                    yield Record(
                        message.partition(),
                        message.offset(),
                        message.timestamp()[1],
                        message.key(),
                        message.value() or b"",
                        headers,
                    )
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    assert error.retriable() or error.code() < 0, f"topic {topic} can't be read: {error}"
                    continue
                progress_s = time.monotonic()
            stalled_s = time.monotonic() - progress_s
            assert stalled_s < _STALLED_S, f"partitions {sorted(set(partitions) - ended)} of {topic} can't be read"
    finally:
        consumer.close()


def _documents(url: str, patterns: list[str]) -> tuple[list[Row], int]:
    """Return the documents of all indices with these names, and the number of deleted or overwritten ones."""
    pattern = ",".join(patterns)
    _ask(url, f"/{pattern}/_refresh", {})
    stats = _ask(url, f"/{pattern}/_stats/docs?expand_wildcards=all")
    names = ("_index", "_id", "_version", "_source")
    found = [{name: hit[name] for name in names} for hit in _hits(url, pattern, {"version": True})]
    held = stats["_all"]["primaries"].get("docs", {"count": 0, "deleted": 0})
    assert held["count"] == len(found), f"the index counts {held['count']} documents and shows {len(found)}"
    return found, held["deleted"]


def _hits(url: str, names: str, options: Row) -> Iterator[Row]:
    """Everything that a search finds under these names, which have been refreshed."""
    page = _ask(url, f"/{names}/_search?scroll=2m", {"size": 5_000, "sort": ["_doc"], **options})
    while hits := page["hits"]["hits"]:
        yield from hits
        page = _ask(url, "/_search/scroll", {"scroll": "2m", "scroll_id": page["_scroll_id"]})
    assert not page["_shards"]["failed"], f"shards can't be read: {page['_shards']}"


def _ask(url: str, path: str, body: Row | None = None) -> Row:
    request = urllib.request.Request(
        url + path,
        data=json.dumps(body).encode() if body else None,
        headers={"content-type": "application/json"},
        method="GET" if body is None else "POST",
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        parsed: Row = json.load(answer)
        return parsed
