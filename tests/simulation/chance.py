"""What is left to chance in a history: thousands of draws, nearly all of them from a handful of things."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import SupportsLenAndGetItem

T = TypeVar("T")


class Chance(random.Random):
    """As `random.Random`, which takes three times as long to draw so that no number is likelier than another by 2^-53."""

    def choice(self, seq: SupportsLenAndGetItem[T]) -> T:
        return seq[int(self.random() * len(seq))]

    def randint(self, a: int, b: int) -> int:
        return a + int(self.random() * (b - a + 1))

    def randrange(self, start: int, *more: Any) -> int:
        """Below `start`."""
        return int(self.random() * start)
