"""Expected document of a result in any index: its id, its index, and every field."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any

from tests.support.chaos.checking.cascade import Closers, Hundredths, Key, Result
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
        """The id as documented: a hash of the lengths and strings that identify a result."""
        key = (*self.result.by.values(), *self.result.beside)
        parts = [("s", self.job), ("s", self.stage), ("i", self.start_ms), ("i", self.result.end_ms), ("i", len(key))]
        parts += [("n", "") if one is None else ("i" if isinstance(one, int) else "s", one) for one in key]
        text = b"".join(f"{kind}{len(str(part).encode())}:{part}".encode() for kind, part in parts)
        return base64.urlsafe_b64encode(hashlib.sha256(text).digest()[:16]).decode().rstrip("=")

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
        wanted = {"job": self.job, "stage": self.stage, "version": self.version}
        if {name: origin.get(name) for name in wanted} != wanted:
            yield f"says that it comes from {origin}"
        emission_last = max(self.closer, self.emission_last)
        is_of_slice = self.closer <= origin.get("emission", -1) <= emission_last
        if not is_of_slice or not self.epochs[0] <= origin.get("epoch", -1) <= self.epochs[1]:
            yield f"says that it comes from {origin}; slice {self.closer} closed its window, under epochs {self.epochs}"
        end_ms = self.result.end_ms
        window = {"start": iso(self.start_ms), "end": iso(end_ms)}
        expected: Row = {"@timestamp": iso(end_ms), "window": window, **self.result.by, **self.result.values}
        for name in sorted(expected.keys() | source.keys()):
            if name not in expected or name not in source or not is_same(source[name], expected[name]):
                yield f"{name} is {source.get(name)!r}, expected {expected.get(name)!r}"


def expected_documents(
    job: str,
    results: dict[Key, Result],
    closers: Closers,
    slices: list[Row],
    checkpoints: dict[int, Row],
    windows: dict[str, Windows],
    epochs: int,
    restored: Sequence[Row] = (),
) -> dict[str, Expected]:
    """Every result of a closed window by its id. `epochs`: the last run's. `restored`: the events `results_restored`: what such a
    run writes again may have the number of a later slice that it restored."""
    planned = {row["number"]: row for row in slices}
    found = {}
    for (stage, end_ms, _), result in results.items():
        closer = closers.of(end_ms)
        if closer is not None:
            done = checkpoints.get(closer)
            may_write = (planned[closer]["epoch"], done["epoch"] if done else epochs)
            version = planned[closer]["version"]
            again = [one for one in restored if one["facts"]["slice_first"] <= closer <= one["facts"]["slice_last"]]
            may_write = (may_write[0], max([may_write[1], *(one["epoch"] for one in again)]))
            last = max((one["facts"]["slice_last"] for one in again), default=0)
            expected = Expected(
                job, stage, windows[stage].size_ms, result, closer, version, may_write, emission_last=last
            )
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
