"""What a platform answers, as values with types. Each has the whole answer in `data`: a service may say more than is named here.

Times are milliseconds since 1970 UTC (`_ms`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Self

Data = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """The base of all of them."""

    data: Data = field(repr=False)

    @classmethod
    def of(cls, data: Data) -> Self:
        """The fields that are named here, and all of it."""
        return cls(data=data, **{one.name: data[one.name] for one in fields(cls) if one.name != "data"})


@dataclass(frozen=True)
class Applied(Answer):
    """What became of one document."""

    kind: str
    """`stream` or `pipeline`."""
    name: str
    outcome: str
    """`created`, `changed` or `unchanged`."""
    version: int
    notes: list[str]
    """What the change of a stream means for each job that reads it."""


@dataclass(frozen=True)
class DocumentPlan(Answer):
    """What applying a stream or a lookup would mean."""

    kind: str
    """`stream` or `lookup`."""
    name: str
    changes: list[Data]
    """The forbidden ones: why `apply` refuses the document."""
    notes: list[str]
    """As `apply` would answer with."""


@dataclass(frozen=True)
class JobPlan(Answer):
    """What applying a pipeline would mean for its job."""

    job: str
    outcome: str
    version: int
    changes: list[Data]
    """The forbidden ones first."""
    rewind: Data | None
    """What the start of the new version would have to read again."""


@dataclass(frozen=True)
class Plan(Answer):
    """What applying documents would mean."""

    documents: list[DocumentPlan]
    """The streams and lookups."""
    jobs: list[JobPlan]

    @classmethod
    def of(cls, data: Data) -> Self:
        """With its parts."""
        documents = [DocumentPlan.of(one) for one in data["documents"]]
        return cls(data=data, documents=documents, jobs=[JobPlan.of(one) for one in data["jobs"]])


@dataclass(frozen=True)
class Job(Answer):
    """A job as it was when it was asked for."""

    name: str
    version: int
    stream: str
    """The input."""
    desired: str
    """`running`, `stopped` or `drained`, as it was ordered."""
    state: str
    """As it is: `created`, `starting`, `running`, `draining`, `stopping`, `stopped`, `drained`, `completed` (a
    batch), `failed` and others."""
    message: str
    """Why it is in this state; empty when there is nothing to say."""
    epoch: int
    """The newest run; 0 before the first."""
    slice: int | None
    """The last committed one."""
    watermark_ms: int | None
    lag_records: int | None
    """Records of the log after the last committed slice; None when Kafka does not answer."""
    last_emission: dict[str, int]
    """Stage -> end (ms) of the last window that it has emitted."""


@dataclass(frozen=True)
class Explanation(Answer):
    """Why a job has no output, or what it waits for."""

    cause: str
    """A code for programs, as `window_open`."""
    sentence: str
    next: str
    """What to do."""
    notes: list[str]
    """Faults of senders: keys that are ahead of their log time, and partitions whose records are all rejected."""


@dataclass(frozen=True)
class RegisteredStream(Answer):
    """A registered stream."""

    name: str
    document: Data
    """The registration, with its defaults filled in."""
    version: int


@dataclass(frozen=True)
class StreamStatus(RegisteredStream):
    """A registered stream, and what the log holds of it."""

    records: int
    """In the log now, all partitions together."""
    emitted_by: str | None
    """The job that emits to it; None where its records come from elsewhere."""


@dataclass(frozen=True)
class DeadLetter(Answer):
    """A record that could not be used."""

    number: int
    """Its offset in the dead-letter stream."""
    stream: str
    partition: int | None
    offset: int | None
    reason: str
    message: str
    step: str
    log_time_ms: int
    value: str
    """The beginning of the sender's bytes as text."""


@dataclass(frozen=True)
class Replayed:
    """What became of dead letters that were put back; in a dry run, what would."""

    matched: int
    put_back: int
    already: int
    """They were put back before."""
    left_out: dict[str, int]
    """Why -> how many."""
    outcomes: dict[str, int]
    """What the present version makes of those put back: `accepted`, or the reason for which it rejects them again."""


@dataclass(frozen=True)
class Sent:
    """What became of the records that were sent."""

    accepted: int
    """So many are in the log."""
    refused: list[Data]
    """Records that are too large: `{index, reason, detail}`, by their place among all that were sent."""
