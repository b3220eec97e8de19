"""Panes: numbered intervals of event time, in which partial results are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from strandline.processing.columns.codes import Codes


class Panes(ABC):
    """The numbers and beginnings of panes. Each pane ends where the next one begins."""

    @abstractmethod
    def of(self, event_us: Codes) -> Codes:
        """Return the numbers of the panes that contain these events."""

    @abstractmethod
    def at(self, at_ms: int) -> int:
        """Return the number of the pane that contains this time. All panes before it have ended."""

    @abstractmethod
    def starts_ms(self, panes: Codes) -> Codes:
        """Return the beginnings of these panes."""


@dataclass(frozen=True)
class EqualPanes(Panes):
    """Panes of equal length."""

    length_ms: int
    offset_ms: int = 0

    def of(self, event_us: Codes) -> Codes:
        return (event_us - 1000 * self.offset_ms if self.offset_ms else event_us) // (1000 * self.length_ms)

    def at(self, at_ms: int) -> int:
        return (at_ms - self.offset_ms) // self.length_ms

    def starts_ms(self, panes: Codes) -> Codes:
        return panes * self.length_ms + self.offset_ms
