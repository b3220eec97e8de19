"""Panes: the pieces of event time, numbered in its order, in which partial results are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from strandline.processing.columns.codes import Codes


class Panes(ABC):
    """Which pane an instant is in, and when panes begin. Each ends where the next begins."""

    @abstractmethod
    def of(self, event_us: Codes) -> Codes:
        """The numbers of the panes that hold these events."""

    @abstractmethod
    def at(self, at_ms: int) -> int:
        """The number of the pane that holds this instant. All before it have ended."""

    @abstractmethod
    def starts_ms(self, panes: Codes) -> Codes:
        """When these panes begin."""


@dataclass(frozen=True)
class EqualPanes(Panes):
    """Each as long as the others."""

    length_ms: int
    offset_ms: int = 0

    def of(self, event_us: Codes) -> Codes:
        return (event_us - 1000 * self.offset_ms if self.offset_ms else event_us) // (1000 * self.length_ms)

    def at(self, at_ms: int) -> int:
        return (at_ms - self.offset_ms) // self.length_ms

    def starts_ms(self, panes: Codes) -> Codes:
        return panes * self.length_ms + self.offset_ms
