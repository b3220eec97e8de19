"""Typed responses of a platform. Each contains the whole response in `data`, because a service can return more fields.

Times are milliseconds since 1970 UTC (`_ms`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Self

Data = dict[str, Any]


@dataclass(frozen=True)
class ApiModel:
    """Base of all responses."""

    data: Data = field(repr=False)

    @classmethod
    def of(cls, data: Data) -> Self:
        """Return the response with its declared fields, and all of it in `data`."""
        return cls(data=data, **{one.name: data[one.name] for one in fields(cls) if one.name != "data"})


@dataclass(frozen=True)
class Applied(ApiModel):
    """Outcome for one document."""

    kind: str
    """`stream` or `pipeline`."""
    name: str
    outcome: str
    """`created`, `changed` or `unchanged`."""
    version: int
    notes: list[str]
    """Effect of the change of a stream on each job that reads it."""


@dataclass(frozen=True)
class DocumentPlan(ApiModel):
    """Effect of applying a stream or a lookup."""

    kind: str
    """`stream` or `lookup`."""
    name: str
    changes: list[Data]
    """Forbidden changes, for which `apply` refuses the document."""
    notes: list[str]
    """Notes that `apply` would return."""


@dataclass(frozen=True)
class JobPlan(ApiModel):
    """Effect of applying a pipeline on its job."""

    job: str
    outcome: str
    version: int
    changes: list[Data]
    """Changes, the forbidden ones first."""
    rewind: Data | None
    """Range that the start of the new version would read again."""


@dataclass(frozen=True)
class Plan(ApiModel):
    """Effect of applying documents."""

    documents: list[DocumentPlan]
    """Streams and lookups."""
    jobs: list[JobPlan]

    @classmethod
    def of(cls, data: Data) -> Self:
        """Return the response with its parts."""
        documents = [DocumentPlan.of(one) for one in data["documents"]]
        return cls(data=data, documents=documents, jobs=[JobPlan.of(one) for one in data["jobs"]])


@dataclass(frozen=True)
class Job(ApiModel):
    """State of a job at the time of the request."""

    name: str
    version: int
    stream: str
    """Input of the job."""
    desired: str
    """Ordered state: `running`, `stopped`, or `drained`."""
    state: str
    """Current state: `created`, `starting`, `running`, `draining`, `stopping`, `stopped`, `drained`, `completed` (a batch),
    `failed`, and others."""
    message: str
    """Reason for the state; empty if there is none."""
    epoch: int
    """Epoch of the newest run; 0 before the first run."""
    slice: int | None
    """Last committed slice. None before the first commit."""
    watermark_ms: int | None
    """Current watermark. Windows that end at or before it are final. None before a record was accepted."""
    lag_records: int | None
    """Number of records in the log after the last committed slice. None if Kafka doesn't respond."""
    last_emission: dict[str, int]
    """Stage -> end (ms) of the last emitted window."""


@dataclass(frozen=True)
class Explanation(ApiModel):
    """Reason why a job has no output, or what it waits for."""

    cause: str
    """Code for programs, as `window_open`."""
    message: str
    next: str
    """Next step for the user."""
    notes: list[str]
    """Problems of senders: keys that are ahead of their log time, and partitions whose records are all rejected."""


@dataclass(frozen=True)
class RegisteredStream(ApiModel):
    """A registered stream."""

    name: str
    document: Data
    """Registration of the stream, with its defaults."""
    version: int


@dataclass(frozen=True)
class StreamStatus(RegisteredStream):
    """A registered stream, and its content in the log."""

    records: int
    """Current number of records in the log, in all partitions."""
    emitted_by: str | None
    """Job that emits to the stream. None if no job does."""


@dataclass(frozen=True)
class DeadLetter(ApiModel):
    """A record that could not be used."""

    number: int
    """Offset in the dead-letter stream."""
    stream: str
    partition: int | None
    offset: int | None
    reason: str
    message: str
    step: str
    log_time_ms: int
    value: str
    """Beginning of the sender's bytes as text."""


@dataclass(frozen=True)
class Requeued:
    """Outcome of a replay of dead letters; in a dry run, the expected outcome."""

    matched: int
    requeued: int
    requeued_before: int
    """Number of dead letters that were requeued before."""
    skipped: dict[str, int]
    """Reason -> number."""
    outcomes: dict[str, int]
    """Outcome with the current version -> number of requeued records: `accepted`, or the reason for the next rejection."""


@dataclass(frozen=True)
class Sent:
    """Outcome of sending records."""

    accepted: int
    """Number of records in the log."""
    refused: list[Data]
    """Records that are too large: `{index, reason, detail}`. The index counts all sent records."""
