"""The `test:` document: the steps of a test of a pipeline, and the expected outcome."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration, Name
from strandline.core.documents import Path as DocumentPath
from strandline.core.times.durations import parse_time_ms


def _time_ms(value: object) -> object:
    return parse_time_ms(value) if isinstance(value, str) else value


EventTimeMs = Annotated[int, BeforeValidator(_time_ms)]
"""ISO 8601, in UTC by default, or milliseconds since 1970."""
JsonRecord = dict[str, Any] | str | None


class CaseStep(DocumentModel):
    """One step: new records, time without records, a restart, or other rows of lookups."""

    record: JsonRecord = None
    """A record: an object, which is written as JSON, or a string, which is the content of the record."""
    records: list[JsonRecord] | None = None
    """Several records. `null` is a record without a value, a tombstone."""
    base64: Literal[True] | None = None
    """True if the strings among them are bytes in base64."""
    input: str | None = None
    """A file of records, relative to the directory of the test."""
    stream: str | None = None
    """Stream of the records of this step. Required if the pipeline reads several streams."""
    at: EventTimeMs | None = None
    """Log time of the records of this step. Default: their event time."""
    partition: Annotated[int, Field(ge=0, lt=1000)] | None = None
    """Partition of the records. Default: chosen by their key."""
    topic: str | None = None
    """MQTT topic of the records."""
    key: str | None = None
    """Kafka key of the records, for a field with metadata."""
    file: str | None = None
    """Name of the file of the records, for a field with metadata."""
    sender: str | None = None
    """Address of the sender of the records, for a field with metadata."""
    query: str | None = None
    """Query of the URL to which the records were sent."""
    headers: dict[str, str] | None = None
    """Headers of the HTTP request with the records, or of the records themselves."""
    wait: Duration | None = None
    """Log time that passes without a record."""
    restart: Literal[True] | None = None
    """The job is killed and started again: its state is rebuilt from the log."""
    lookups: dict[str, str] | None = None
    """Lookup -> a file of the rows that are effective from here, as if they had been applied."""

    def contradictions(self) -> Iterator[tuple[DocumentPath, str]]:
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            yield (), f"expected exactly one of {', '.join(_KINDS)}" + (f", got {', '.join(given)}" if given else "")
        elif given[0] in ("wait", "restart", "lookups"):
            for name in ("stream", "at", "partition", "topic", "query", "headers", "key", "file", "sender", "base64"):
                if getattr(self, name) is not None:
                    yield (name,), f"is only for records, but this step is a '{given[0]}'"
        if self.topic is not None and self.query is not None:
            yield ("query",), "a record has a topic or a query, not both"
        if self.base64:
            try:
                self.values()
            except ValueError as error:
                yield ("base64",), f"a string of this step is not base64: {error}"

    def values(self) -> list[bytes | None]:
        """Return the records in the step itself, as bytes. Raises ValueError for a string that isn't base64."""
        written = self.records if self.records is not None else [] if self.record is None else [self.record]
        return [None if one is None else self._bytes(one) for one in written]

    def _bytes(self, one: dict[str, Any] | str) -> bytes:
        if isinstance(one, str):
            return b64decode(one, validate=True) if self.base64 else one.encode()
        return json.dumps(one, ensure_ascii=False).encode()


_KINDS = ("record", "records", "input", "wait", "restart", "lookups")


class Expected(DocumentModel):
    """The expected outcome. Fields that aren't named are not compared, but the number of documents must be equal."""

    results: list[dict[str, Any]] | str | None = None
    """Documents, or a file of them (NDJSON, JSON, YAML). Default: not compared."""
    dead_letters: list[dict[str, Any]] | Literal["any"] = Field(default_factory=list)
    """Records and results that could not be used: `reason`, `message`, `step`, `stream`, `partition`, `offset`, `value`.
    `any`: they are not compared."""
    late: int | None = None
    """Number of late records. They needn't be listed among the dead letters then."""


class CaseSpec(DocumentModel):
    """A `test:` document."""

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {}

    test: Name
    """Purpose of the test, as a name."""
    file: str
    """File with the pipeline and its stream, relative to the directory of the test."""
    pipeline: str | None = None
    """Name of the pipeline, if the file has several."""
    lookups: dict[str, str] = Field(default_factory=dict)
    """Lookup -> a file of its initial rows, relative to the directory of the test. For example, for a lookup that follows a
    stream."""
    partitions: Annotated[int, Field(ge=1, le=1000)] = 1
    """Number of partitions of the stream."""
    slice: Annotated[int, Field(ge=1)] | Literal["all"] = 1
    """Records in a slice. Results don't depend on it."""
    drain: bool = True
    """True if all windows are closed at the end."""
    steps: list[CaseStep]
    """Steps in their order."""
    expect: Expected
    """Expected outcome."""
