"""A *look*: the offsets of all streams that one or more jobs read, queried at one time.

The brokers get one request for each kind of question, not one for each job. A stream that several jobs read is queried once.
Each stream has its own answer or its own error. Only the jobs that read the stream get its error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from strandline.core.errors import StrandlineError
from strandline.log.answers import Answers, answer_of
from strandline.log.batch_checksums import LogPosition

T = TypeVar("T")
Offsets = dict[int, int]
Checksums = Mapping[LogPosition, int | StrandlineError]
"""Checksum of the record batch at each of several offsets. An offset that the log doesn't hold is left out."""


class LogQuestions(Protocol):
    """Questions about the log, as `log.index.LogIndex` answers them: about one stream, and about several in one request."""

    def starts(self, stream: str) -> Offsets: ...
    def ends(self, stream: str) -> Offsets: ...
    def ends_with_open(self, stream: str) -> Offsets: ...
    def offsets_at(self, stream: str, log_time_ms: int, ends: Mapping[int, int]) -> Offsets: ...
    def not_writable(self, stream: str) -> set[int]: ...
    def newest_log_time(self, stream: str) -> int: ...
    def partitions(self, stream: str) -> list[int]: ...
    def topic_id(self, stream: str) -> str: ...
    def checksums(self, stream: str, offsets: Mapping[int, int]) -> Offsets: ...

    def starts_of(self, streams: Collection[str]) -> Answers[Offsets]: ...
    def ends_of(self, streams: Collection[str]) -> Answers[Offsets]: ...
    def ends_with_open_of(self, streams: Collection[str]) -> Answers[Offsets]: ...
    def not_writable_of(self, streams: Collection[str]) -> Answers[set[int]]: ...
    def topic_ids(self, streams: Collection[str]) -> Answers[str]: ...
    def checksums_at(self, places: Collection[LogPosition]) -> Checksums: ...


class Wanted(NamedTuple):
    """Parts of a look that a job needs before its next slice is cut."""

    streams: Collection[str]
    """The streams that the job reads."""
    timed: Collection[str] = ()
    """Streams whose silence is counted."""
    starts: bool = False
    """True if the job may begin at the first records that the streams hold."""


@dataclass(frozen=True)
class Look:
    """Answers about the streams of one or more jobs. Each field contains only the streams for which it was queried."""

    began_ms: int
    """Monotonic time at which the look began."""
    answered_ms: int
    """Monotonic time of the last answer."""
    ends: Answers[Offsets]
    """End of each partition, without the records of open transactions."""
    ends_with_open: Answers[Offsets] = field(default_factory=dict)
    not_writable: Answers[set[int]] = field(default_factory=dict)
    starts: Answers[Offsets] = field(default_factory=dict)


def take_look(wanted: Iterable[Wanted], index: LogQuestions, monotonic_ms: Callable[[], int]) -> Look:
    """Query what these jobs need, each question once, and return the answers. The error of a stream is stored as its answer."""
    streams: dict[str, None] = {}
    timed: dict[str, None] = {}
    starting: dict[str, None] = {}
    for one in wanted:
        streams |= dict.fromkeys(one.streams)
        timed |= dict.fromkeys(one.timed)
        starting |= dict.fromkeys(one.streams if one.starts else ())
    # Before `began_ms`, because silence doesn't depend on the starts.
    starts = index.starts_of(starting) if starting else {}
    began_ms = monotonic_ms()
    ends = index.ends_of(streams) if streams else {}
    ends_with_open = index.ends_with_open_of(timed) if timed else {}
    not_writable = index.not_writable_of(timed) if timed else {}
    return Look(began_ms, monotonic_ms(), ends, ends_with_open, not_writable, starts)


class LookedLog:
    """Answers about the log for one job: from `look` if it is set and contains the stream, otherwise from a new query."""

    def __init__(self, index: LogQuestions) -> None:
        self._index = index
        self.look: Look | None = None

    def starts(self, stream: str) -> Offsets:
        return self._of(self.look.starts if self.look else {}, stream, self._index.starts)

    def ends(self, stream: str) -> Offsets:
        return self._of(self.look.ends if self.look else {}, stream, self._index.ends)

    def ends_with_open(self, stream: str) -> Offsets:
        return self._of(self.look.ends_with_open if self.look else {}, stream, self._index.ends_with_open)

    def not_writable(self, stream: str) -> set[int]:
        return self._of(self.look.not_writable if self.look else {}, stream, self._index.not_writable)

    def offsets_at(self, stream: str, log_time_ms: int, ends: Mapping[int, int]) -> Offsets:
        return self._index.offsets_at(stream, log_time_ms, ends)

    def newest_log_time(self, stream: str) -> int:
        return self._index.newest_log_time(stream)

    def partitions(self, stream: str) -> list[int]:
        return self._index.partitions(stream)

    def topic_id(self, stream: str) -> str:
        return self._index.topic_id(stream)

    @staticmethod
    def _of(answers: Answers[T], stream: str, ask: Callable[[str], T]) -> T:
        return answer_of(answers, stream) if stream in answers else ask(stream)
