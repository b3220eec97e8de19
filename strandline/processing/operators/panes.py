"""Panes: the pieces of event time, numbered in its order, in which partial results are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from strandline.processing.columns.codes import Codes
from strandline.processing.pipelines.event_time import DayShape


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


@dataclass(frozen=True)
class DayPanes(Panes):
    """The days of a time zone, or so many together as lie between the beginnings of two windows."""

    shape: DayShape

    def of(self, event_us: Codes) -> Codes:
        if not len(event_us):
            return event_us
        # Where a day begins is looked up for each day that is there, not for each event.
        in_utc = (event_us - 1000 * self.shape.offset_ms) // (1000 * self.shape.every_ms)
        about, codes = np.unique(in_utc, return_inverse=True)
        near = np.unique(np.concatenate([about - 1, about, about + 1]))
        starts_us = self.starts_ms(near) * 1000
        first = np.searchsorted(near, about - 1)
        found = near[first][codes]
        for following in (1, 2):
            found += event_us >= starts_us[first + following][codes]
        return found

    def at(self, at_ms: int) -> int:
        return self.shape.number_at(at_ms)

    def starts_ms(self, panes: Codes) -> Codes:
        return np.array([self.shape.start_ms(pane) for pane in panes.tolist()], np.int64)
