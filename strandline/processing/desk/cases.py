"""The `test:` document: what happens to a pipeline, step by step, and what must come of it."""

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


Moment = Annotated[int, BeforeValidator(_time_ms)]
"""ISO 8601, UTC unless it says, or milliseconds since 1970."""
JsonRecord = dict[str, Any] | str | None


class CaseStep(DocumentModel):
    """One step: records that come, time that passes, a restart, other rows of lookups."""

    record: JsonRecord = None
    """A record: an object, which becomes JSON, or a text, which is the record's bytes."""
    records: list[JsonRecord] | None = None
    """Several. `null` is a record without a value, a tombstone."""
    base64: Literal[True] | None = None
    """Whether the texts among them are bytes in base64."""
    input: str | None = None
    """A file of records, from the test's directory."""
    stream: str | None = None
    """The stream that the records of this step come to. Needed where the pipeline reads several."""
    at: Moment | None = None
    """When the records of this step came (log time). Default: their event time."""
    partition: Annotated[int, Field(ge=0, lt=1000)] | None = None
    """Where they came to. Default: as their key says."""
    topic: str | None = None
    """The MQTT topic that they came from."""
    key: str | None = None
    """The Kafka key that they have, for a field with metadata."""
    file: str | None = None
    """The name of the file that they came from, for a field with metadata."""
    sender: str | None = None
    """The address that they were sent from, for a field with metadata."""
    query: str | None = None
    """The query of the URL that they were sent to."""
    headers: dict[str, str] | None = None
    """Headers of the HTTP request that brought them, or of the records themselves."""
    wait: Duration | None = None
    """So much log time passes, and no record comes."""
    restart: Literal[True] | None = None
    """The job is killed and starts again: its state is rebuilt from the log."""
    lookups: dict[str, str] | None = None
    """Lookup -> a file of the rows that are in force from here on, as if they had been applied."""

    def contradictions(self) -> Iterator[tuple[DocumentPath, str]]:
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            yield (), f"expected exactly one of {', '.join(_KINDS)}" + (f", got {', '.join(given)}" if given else "")
        elif given[0] in ("wait", "restart", "lookups"):
            for name in ("stream", "at", "partition", "topic", "query", "headers", "key", "file", "sender", "base64"):
                if getattr(self, name) is not None:
                    yield (name,), f"is of records, and this step is a '{given[0]}'"
        if self.topic is not None and self.query is not None:
            yield ("query",), "a record comes from a topic or with a query, not both"
        if self.base64:
            try:
                self.values()
            except ValueError as error:
                yield ("base64",), f"a text of this step is no base64: {error}"

    def values(self) -> list[bytes | None]:
        """The bytes of the records that stand in the step itself. Raises ValueError for what is no base64."""
        written = self.records if self.records is not None else [] if self.record is None else [self.record]
        return [None if one is None else self._bytes(one) for one in written]

    def _bytes(self, one: dict[str, Any] | str) -> bytes:
        if isinstance(one, str):
            return b64decode(one, validate=True) if self.base64 else one.encode()
        return json.dumps(one, ensure_ascii=False).encode()


_KINDS = ("record", "records", "input", "wait", "restart", "lookups")


class Expected(DocumentModel):
    """What must come of it. What is not named is not compared, but there must be no more and no fewer."""

    results: list[dict[str, Any]] | str | None = None
    """Documents, or a file of them (NDJSON, JSON, YAML). Default: not compared."""
    dead_letters: list[dict[str, Any]] | Literal["any"] = Field(default_factory=list)
    """Records and results that could not be used: `reason`, `message`, `step`, `stream`, `partition`, `offset`, `value`.
    `any`: they are not compared."""
    late: int | None = None
    """How many records are late. They need not stand among the dead letters then."""


class CaseSpec(DocumentModel):
    """A `test:` document."""

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {}

    test: Name
    """What is shown, as a name."""
    file: str
    """The file with the pipeline and its stream, from the test's directory."""
    pipeline: str | None = None
    """Which pipeline, where the file has several."""
    lookups: dict[str, str] = Field(default_factory=dict)
    """Lookup -> a file of the rows that it begins with, from the directory of the test: of one that follows a stream, say."""
    partitions: Annotated[int, Field(ge=1, le=1000)] = 1
    """Of the stream."""
    slice: Annotated[int, Field(ge=1)] | Literal["all"] = 1
    """Records a slice. Results don't depend on it."""
    drain: bool = True
    """Whether all windows are closed at the end."""
    steps: list[CaseStep]
    """What happens, in order."""
    expect: Expected
    """What must come of it."""
