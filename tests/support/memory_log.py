"""A stream's log in memory, as those see it who read whole messages: the admin's answers, and a reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from strandline.core.errors import NotFound
from strandline.log.reader import OffsetRange


class MemoryMessage(NamedTuple):
    at: int
    of_key: bytes | None
    of_value: bytes | None

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.of_key

    def value(self) -> bytes | None:
        return self.of_value

    def headers(self) -> list[tuple[str, bytes]]:
        return []


class MemoryLog:
    """Replaces `KafkaAdmin`; `reader` creates a replacement of `LogReader`."""

    bootstrap = "nowhere"

    def __init__(self, stream: str, partitions: int, topic_id: str = "id-1") -> None:
        self.stream = stream
        self.topic_id = topic_id
        self.partitions = partitions
        self.messages: dict[int, list[MemoryMessage]] = {at: [] for at in range(partitions)}
        self._starts = dict.fromkeys(range(partitions), 0)
        self.reads = 0

    def append(self, partition: int, value: bytes | None, key: bytes | None = None) -> None:
        self.messages[partition].append(MemoryMessage(len(self.messages[partition]), key, value))

    def lose_up_to(self, partition: int, offset: int) -> None:
        """Remove records, like retention."""
        self._starts[partition] = offset

    def describe(self, topic: str) -> Any:
        if topic != self.stream:
            raise NotFound(f"There is no topic {topic}.")
        return self

    def starts(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return {at: self._starts[at] for at in partitions}

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return {at: len(self.messages[at]) for at in partitions}

    def reader(self, bootstrap: str) -> MemoryReader:
        self.reads += 1
        return MemoryReader(self)


class MemoryReader:
    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def read(self, wanted: OffsetRange) -> Iterator[list[MemoryMessage]]:
        found = self._log.messages[wanted.partition][wanted.offset_first : wanted.offset_next]
        for first in range(0, len(found), 3):
            yield found[first : first + 3]

    def close(self) -> None:
        pass
