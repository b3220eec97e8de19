"""A log of one partition that grows by five records at each look."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.one_by_one import OneByOne


class GrowingLog(OneByOne):
    """The part of `LogIndex` that a planner uses. At the second query the log changes."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self.looks, self.happens = 0, happens

    def starts(self, stream: str) -> dict[int, int]:
        return {0: 0}

    def ends(self, stream: str) -> dict[int, int]:
        self.looks += 1
        if self.looks == 2:
            self.happens()
        return {0: 5 * self.looks}

    ends_with_open = ends

    def partitions(self, stream: str) -> list[int]:
        return [0]

    def topic_id(self, stream: str) -> str:
        return "id-1"

    def checksums(self, stream: str, offsets: dict[int, int]) -> dict[int, int]:
        return dict(offsets)
