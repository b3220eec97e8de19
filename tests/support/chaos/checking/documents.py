"""Expected document of a result in any index: its id, its index, and every field."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any

from tests.support.chaos.checking.cascade import Closers, Hundredths, Key, Result
from tests.support.chaos.checking.judging import ClassifiedRecord
from tests.support.chaos.checking.pace import Windows
from tests.support.chaos.dump import Row


@dataclass(frozen=True)
class Expected:
    """A result of a closed window, and what its document has to be like."""

    job: str
    stage: str
    size_ms: int
    result: Result
    closer: int
    """The slice that closes its window."""
    version: int
    """That slice's, or the backfill's."""
    epochs: tuple[int, int]
    """First and last run that may have written it: a planned, uncommitted slice may already be written, completely or
    in part. For a backfill: attempts."""
    generation: int = 1
    """Generation of the backfill that computes it; 1 for the job itself."""
    emission_last: int = 0
    """The last slice under whose number a backfill may write it; the first is the one that closes its window."""

    @cached_property
    def id(self) -> str:
        key = (*self.result.by.values(), *self.result.beside)
        return _hash_of([self.job, self.stage, self.start_ms, self.result.end_ms, len(key), *key])

    @cached_property
    def start_ms(self) -> int:
        start_ms = self.result.start_ms
        return self.result.end_ms - self.size_ms if start_ms is None else start_ms

    @property
    def index(self) -> str:
        end = iso(self.result.end_ms)
        generation = f".g{self.generation}" if self.generation > 1 else ""
        return f"{self.job}-{self.stage}{generation}-{end[:4]}.{end[5:7]}"

    @property
    def place(self) -> str:
        return f"{self.index}/{self.id}"

    def differences(self, index: str, source: Row) -> Iterator[str]:
        """Yield a message for each difference between a document in this index and the expected one."""
        if index != self.index:
            yield f"is in the index {index}"
        source = dict(source)
        origin = source.pop("strandline", {})
        wanted = {"job": self.job, "stage": self.stage, "version": self.version, **self._place_in_log}
        if {name: origin.get(name) for name in wanted} != wanted:
            yield f"says that it comes from {origin}"
        emission_last = max(self.closer, self.emission_last)
        is_of_slice = self.closer <= origin.get("emission", -1) <= emission_last
        if not is_of_slice or not self.epochs[0] <= origin.get("epoch", -1) <= self.epochs[1]:
            yield f"says that it comes from {origin}; slice {self.closer} closed its window, under epochs {self.epochs}"
        expected = self._source
        for name in sorted(expected.keys() | source.keys()):
            if name not in expected or name not in source or not is_same(source[name], expected[name]):
                yield f"{name} is {source.get(name)!r}, expected {expected.get(name)!r}"

    @property
    def _place_in_log(self) -> Row:
        """Additional facts of its origin."""
        return {}

    @property
    def _source(self) -> Row:
        """The fields of the document, apart from its origin."""
        end_ms = self.result.end_ms
        window = {"start": iso(self.start_ms), "end": iso(end_ms)}
        return {"@timestamp": iso(end_ms), "window": window, **self.result.by, **self.result.values}


@dataclass(frozen=True)
class ExpectedRecord(Expected):
    """A row that is emitted without a window, in the slice of its record. The event time is the end of the result."""

    stream: str = ""
    partition: int = 0
    offset: int = 0
    element: int | None = None

    @cached_property
    def id(self) -> str:
        return _hash_of([self.job, self.stage, self.stream, self.partition, self.offset, self.element])

    @property
    def _place_in_log(self) -> Row:
        place = {"stream": self.stream, "partition": self.partition, "offset": self.offset}
        return place if self.element is None else {**place, "element": self.element}

    @property
    def _source(self) -> Row:
        return {"@timestamp": iso(self.result.end_ms), **self.result.values}


def _hash_of(parts: Sequence[str | int | None]) -> str:
    """Return the id as documented: a hash of the lengths and strings that identify a result."""
    tagged = [("n", "") if one is None else ("i" if isinstance(one, int) else "s", one) for one in parts]
    text = b"".join(f"{kind}{len(str(part).encode())}:{part}".encode() for kind, part in tagged)
    return base64.urlsafe_b64encode(hashlib.sha256(text).digest()[:16]).decode().rstrip("=")


class Writers:
    """The runs that may have written the results of a slice, and their version."""

    def __init__(
        self, slices: list[Row], checkpoints: dict[int, Row], epochs: int, restored: Sequence[Row] = ()
    ) -> None:
        """`epochs`: the last run's. `restored`: the events `results_restored`: what such a run writes again may have the number
        of a later slice that it restored."""
        self._planned = {row["number"]: row for row in slices}
        self._checkpoints = checkpoints
        self._last = epochs
        self._restored = restored

    def of(self, number: int) -> Row:
        """Return the version, the runs, and the last slice under whose number they may have written, of this slice's results."""
        planned, done = self._planned[number], self._checkpoints.get(number)
        again = [one for one in self._restored if one["facts"]["slice_first"] <= number <= one["facts"]["slice_last"]]
        last = max([done["epoch"] if done else self._last, *(one["epoch"] for one in again)])
        return {
            "version": planned["version"],
            "epochs": (planned["epoch"], last),
            "emission_last": max((one["facts"]["slice_last"] for one in again), default=0),
        }


def expected_records(
    job: str, stage: str, stream: str, rows: Iterable[tuple[ClassifiedRecord, Row]], writers: Writers
) -> dict[str, Expected]:
    """Every row that is emitted, by its id. `rows`: each with its columns."""
    found: dict[str, Expected] = {}
    for one, columns in rows:
        assert one.event_ms is not None
        place = (stream, one.record.partition, one.record.offset, one.element)
        names = ("stream", "partition", "offset", "element")
        more = writers.of(one.slice) | dict(zip(names, place, strict=True))
        expected = ExpectedRecord(job, stage, 0, Result(one.event_ms, {}, columns), one.slice, **more)
        found[expected.id] = expected
    return found


def expected_documents(
    job: str, results: dict[Key, Result], closers: Closers, windows: dict[str, Windows], writers: Writers
) -> dict[str, Expected]:
    """Every result of a closed window by its id."""
    found = {}
    for (stage, end_ms, _), result in results.items():
        closer = closers.of(end_ms)
        if closer is not None:
            expected = Expected(job, stage, windows[stage].size_ms, result, closer, **writers.of(closer))
            found[expected.id] = expected
    return found


def is_same(held: Any, expected: Any) -> bool:
    """Whether a value of a document is as it has to be, to the last bit."""
    if isinstance(expected, Hundredths):
        return expected.allows(held)
    if isinstance(expected, Decimal):
        return isinstance(held, str) and Decimal(held) == expected
    if isinstance(expected, float):
        return isinstance(held, float) and held == expected
    return type(held) is type(expected) and held == expected


@lru_cache(maxsize=10_000)
def iso(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment_ms % 1000:03d}Z"
