"""A topic of one partition with transactional producers, with the guarantees of Kafka.

A producer that takes over an id ends the open transactions of its holder, which can do nothing more. Readers of
committed records see nothing after an open transaction. A transaction that is open for too long is ended.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum, auto

from strandline.core.errors import LogUnavailable

OPEN_MAX_MS = 15_000


class State(Enum):
    OPEN = auto()
    COMMITTED = auto()
    ENDED = auto()


@dataclass
class Transaction:
    opened_ms: int
    state: State = State.OPEN


@dataclass(frozen=True)
class Hold:
    """State of a producer."""

    id: str
    number: int


@dataclass
class Topic:
    entries: list[tuple[Hashable, object, Transaction]] = field(default_factory=list)
    """Identity, value, and the transaction that holds it."""
    _newest: dict[str, int] = field(default_factory=dict)
    _open: dict[str, Transaction] = field(default_factory=dict)
    _settled: int = 0
    """Up to where no transaction was open at the last look. None opens again, so the next look begins here."""

    def take_over(self, transactional_id: str) -> Hold:
        self._end(transactional_id)
        self._newest[transactional_id] = self._newest.get(transactional_id, 0) + 1
        return Hold(transactional_id, self._newest[transactional_id])

    def hold(self, transactional_id: str) -> Hold:
        """Return the hold of the id's owner without ending anything. No producer can do this."""
        return Hold(transactional_id, self._newest.setdefault(transactional_id, 1))

    def append(self, hold: Hold, identity: Hashable, value: object, now_ms: int) -> None:
        """Into the producer's open transaction, which begins with it. Raises LogUnavailable where another holds the id."""
        self._require(hold)
        transaction = self._open.setdefault(hold.id, Transaction(now_ms))
        self.entries.append((identity, value, transaction))

    def commit(self, hold: Hold) -> None:
        self._require(hold)
        if hold.id in self._open:
            self._open.pop(hold.id).state = State.COMMITTED

    def end_stale(self, now_ms: int) -> None:
        """End what has been open for too long; its producer can do nothing more."""
        if not self._open:
            return
        for transactional_id, transaction in list(self._open.items()):
            if now_ms - transaction.opened_ms > OPEN_MAX_MS:
                self.take_over(transactional_id)

    def settled_end(self) -> int:
        """Up to where readers of committed records see: the first open transaction, or the end."""
        while self._settled < len(self.entries) and self.entries[self._settled][2].state is not State.OPEN:
            self._settled += 1
        return self._settled

    def committed(self, first: int, end: int | None = None) -> list[tuple[Hashable, object]]:
        return [
            (identity, value)
            for identity, value, transaction in self.entries[first:end]
            if transaction.state is State.COMMITTED
        ]

    def _end(self, transactional_id: str) -> None:
        if transactional_id in self._open:
            self._open.pop(transactional_id).state = State.ENDED

    def _require(self, hold: Hold) -> None:
        if self._newest[hold.id] != hold.number:
            raise LogUnavailable(f"{hold.id} was taken over")
