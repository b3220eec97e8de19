"""Platforms that go wrong in ways in which platforms go wrong, in the simplest form that can: the checker finds each."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.support.chaos.checker import JobVerdict, check_job
from tests.support.chaos.dump import Record, Row
from tests.support.chaos.made_up import MadeUpJob

JOB, STREAM = "chaos", "chaos-readings"


class StartsAtTheLatest(MadeUpJob):
    """Every run begins with no window open: nothing is replayed."""

    def begin_run(self) -> None:
        super().begin_run()
        self.tens.clear()
        self.minutes.clear()


class ForgetsTheCascade(MadeUpJob):
    """Replays as far back as the first stage reaches, and not the second."""

    def begin_run(self) -> None:
        super().begin_run()
        self.minutes.clear()


class ReplaysTooMuch(MadeUpJob):
    """Every run counts again what the last slice held."""

    def take(self, records: list[Record], row: Row) -> Counter[str]:
        died = self.epoch > row["epoch"]
        rejected = super().take(records, row)
        if died:
            for key, members in self.tens.items():
                self.tens[key] = members + members[-1:]
        return rejected


class WorksOutItsOwnWatermark(MadeUpJob):
    """Late is what is behind the newest record seen so far, not what is behind the slice's watermark."""

    def take(self, records: list[Record], row: Row) -> Counter[str]:
        recorded = row["watermark_ms"]
        row["watermark_ms"] = None if recorded is None else recorded + 7_000
        rejected = super().take(records, row)
        row["watermark_ms"] = recorded
        return rejected


class LosesRecordsOfAnOutage(MadeUpJob):
    """Where the log doesn't answer it reads on behind the gap."""

    def take(self, records: list[Record], row: Row) -> Counter[str]:
        return super().take(records[1:] if self.chance.random() < 0.2 else records, row)


class SumsInFloats(MadeUpJob):
    def write(
        self, stage: str, name: str, end_ms: int, size_ms: int, by: Row, values: Row, row: Row, epoch: int
    ) -> None:
        super().write(stage, name, end_ms, size_ms, by, values | {"cost": float(values["cost"])}, row, epoch)


class IgnoresRefusedItems(MadeUpJob):
    """A bulk request with status 200 is taken for success, whatever its items say."""

    def write(
        self, stage: str, name: str, end_ms: int, size_ms: int, by: Row, values: Row, row: Row, epoch: int
    ) -> None:
        if self.chance.random() > 0.05:
            super().write(stage, name, end_ms, size_ms, by, values, row, epoch)


class TakesAConflictForSuccess(MadeUpJob):
    """What an earlier attempt wrote by another computation stays, unread."""

    def write(
        self, stage: str, name: str, end_ms: int, size_ms: int, by: Row, values: Row, row: Row, epoch: int
    ) -> None:
        stale = values | {"n": values["n"] - 1} if self.epoch > row["epoch"] else values
        super().write(stage, name, end_ms, size_ms, by, stale, row, epoch)


class OverwritesOnARepeat(MadeUpJob):
    def write(
        self, stage: str, name: str, end_ms: int, size_ms: int, by: Row, values: Row, row: Row, epoch: int
    ) -> None:
        super().write(stage, name, end_ms, size_ms, by, values, row, epoch)
        if self.epoch > row["epoch"]:
            self.dump.documents[-1]["_version"] += 1


class NamesTheIndexByTheClock(MadeUpJob):
    def write(
        self, stage: str, name: str, end_ms: int, size_ms: int, by: Row, values: Row, row: Row, epoch: int
    ) -> None:
        super().write(stage, name, end_ms, size_ms, by, values, row, epoch)
        self.dump.documents[-1]["_index"] = f"{JOB}-{name}-2026.11"


class TakesIdsFromTheAttempt(MadeUpJob):
    def write(
        self, stage: str, name: str, end_ms: int, size_ms: int, by: Row, values: Row, row: Row, epoch: int
    ) -> None:
        super().write(stage, name, end_ms, size_ms, by, values, row, epoch)
        self.dump.documents[-1]["_id"] = f"{self.dump.documents[-1]['_id'][:-2]}-{epoch}"


class BuriesAgain(MadeUpJob):
    """Dead letters at least once: again by each attempt."""

    def bury(self, record: Record, reason: str) -> None:
        super().bury(record, reason)
        if self.epoch > self.dump.tables["slices"][-1]["epoch"]:
            super().bury(record, reason)


class CommitsBeforeItBuries(MadeUpJob):
    def bury(self, record: Record, reason: str) -> None:
        if self.epoch == self.dump.tables["slices"][-1]["epoch"]:
            super().bury(record, reason)


class LetsAZombieCommit(MadeUpJob):
    """An old run's checkpoint is taken after a new one has begun."""

    def slice(self, count: int) -> None:
        super().slice(count)
        done = self.dump.tables["checkpoints"][-1]
        if self.epoch > 1 and self.chance.random() < 0.1:
            done["epoch"] = self.epoch - 1


MUTANTS = [
    StartsAtTheLatest,
    ForgetsTheCascade,
    ReplaysTooMuch,
    WorksOutItsOwnWatermark,
    LosesRecordsOfAnOutage,
    SumsInFloats,
    IgnoresRefusedItems,
    TakesAConflictForSuccess,
    OverwritesOnARepeat,
    NamesTheIndexByTheClock,
    TakesIdsFromTheAttempt,
    BuriesAgain,
    CommitsBeforeItBuries,
    LetsAZombieCommit,
]


def run(kind: type[MadeUpJob], seed: int) -> JobVerdict:
    """A longer run than a recorded one: every mutant comes to where it goes wrong."""
    made_up = kind(seed, JOB, STREAM)
    chance = random.Random(seed)
    for _ in range(150):
        made_up.slice(chance.choice((0, 5, 20)))
    made_up.dump.records.sort(key=lambda record: (record.partition, record.offset))
    return check_job(made_up.dump, JOB, STREAM)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_platform_that_goes_wrong_is_found_out(mutant: type[MadeUpJob]) -> None:
    for seed in range(3):
        assert run(mutant, seed).violations


def test_one_that_does_not_is_left_alone() -> None:
    for seed in range(10):
        assert run(MadeUpJob, seed).violations == []
