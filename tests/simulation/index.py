"""The results store of the simulated job: it may be busy, take nothing at all, or refuse some documents for good."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from enum import Enum, auto

from tests.simulation.windows import Key


class Answer(Enum):
    """To one document."""

    TAKEN = auto()
    BUSY = auto()
    """429: not now."""
    SHUT = auto()
    """The whole request is refused, and waiting alone doesn't help: a lost right, a block."""
    LATE = auto()
    """None in time: the document may come in later, or never."""
    REFUSED = auto()
    """400 of this document: never."""


@dataclass
class Held:
    """A document in the index."""

    value: tuple[int, int]
    version: int
    epoch: int
    writes: int = 1


class Divergence(Exception):
    """Two runs say different things of one window."""


@dataclass
class Index:
    salt: int | None = None
    """Decides which documents are refused; None: none is."""
    is_overwriting: bool = False
    """A mistake."""
    documents: dict[Key, Held] = field(default_factory=dict)
    is_busy: bool = False
    is_shut: bool = False
    is_late: bool = False
    _under_way: list[tuple[Key, tuple[int, int], int, int]] = field(default_factory=list)

    def create(self, key: Key, value: tuple[int, int], version: int, epoch: int) -> Answer:
        """Raises Divergence where another value is there."""
        if self.is_busy or self.is_shut:
            return Answer.SHUT if self.is_shut else Answer.BUSY
        if self.is_late:
            self._under_way.append((key, value, version, epoch))
            return Answer.LATE
        return self._take(key, value, version, epoch)

    def let_come_in(self) -> None:
        """Everything that is under way. Raises Divergence."""
        while self._under_way:
            self._take(*self._under_way.pop())

    def _take(self, key: Key, value: tuple[int, int], version: int, epoch: int) -> Answer:
        if self.refuses(key):
            return Answer.REFUSED
        held = self.documents.get(key)
        if held is None:
            self.documents[key] = Held(value, version, epoch)
        elif self.is_overwriting:
            self.documents[key] = Held(value, version, epoch, held.writes + 1)
        elif held.value != value:
            raise Divergence(f"{key} is {held.value} by epoch {held.epoch}, and epoch {epoch} makes it {value}")
        return Answer.TAKEN

    def refuses(self, key: Key) -> bool:
        return self.salt is not None and zlib.crc32(repr((self.salt, key)).encode()) % 10 == 0
