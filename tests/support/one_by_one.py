"""A log of a test that answers questions about several streams one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from strandline.core.errors import StrandlineError
from strandline.log.answers import Answers, answers_of
from strandline.log.batch_checksums import LogPosition

T = TypeVar("T")


class OneByOne:
    """Answers as `LogIndex` does, from the methods for a single stream that the test's log has."""

    def _each(self, streams: Collection[str], name: str) -> Answers[Any]:
        ask: Callable[[str], Any] = getattr(self, name)
        return answers_of(streams, ask)

    def starts_of(self, streams: Collection[str]) -> Answers[dict[int, int]]:
        return self._each(streams, "starts")

    def ends_of(self, streams: Collection[str]) -> Answers[dict[int, int]]:
        return self._each(streams, "ends")

    def ends_with_open_of(self, streams: Collection[str]) -> Answers[dict[int, int]]:
        return self._each(streams, "ends_with_open")

    def not_writable_of(self, streams: Collection[str]) -> Answers[set[int]]:
        return self._each(streams, "not_writable")

    def topic_ids(self, streams: Collection[str]) -> Answers[str]:
        return self._each(streams, "topic_id")

    def checksums_at(self, places: Collection[LogPosition]) -> dict[LogPosition, Any]:
        ask: Callable[[str, dict[int, int]], dict[int, int]] = getattr(self, "checksums")  # noqa: B009
        found: dict[LogPosition, Any] = {}
        for place in places:
            try:
                checksum = ask(place.stream, {place.partition: place.offset}).get(place.partition)
            except StrandlineError as error:
                found[place] = error
                continue
            if checksum is not None:
                found[place] = checksum
        return found
