"""Platforms that go wrong in ways in which platforms go wrong, in the simplest form that can: the checker finds each."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from strandline.processing.slices.watermark import greatest, watermark_by
from tests.support.chaos.checker import JobVerdict, check_job
from tests.support.chaos.checking.pace import PACES
from tests.support.chaos.dump import Dump, Record, Row
from tests.support.chaos.made_up import LARGE_BYTES, RULE, MadeUpJob
from tests.support.chaos.work import draw_speed
from tests.support.examples import one_in

JOB, STREAM = "chaos", "chaos-readings"
NEWEST = replace(RULE, watermark="newest")


class StartsAtTheLatest(MadeUpJob):
    """Every run begins with no window open: nothing is replayed."""

    def begin_run(self) -> None:
        super().begin_run()
        self.short.clear()
        self.long.clear()


class ForgetsTheCascade(MadeUpJob):
    """Replays as far back as the first stage reaches, and not the second."""

    def begin_run(self) -> None:
        super().begin_run()
        self.long.clear()


class ReplaysTooMuch(MadeUpJob):
    """Every run counts again what the last slice held."""

    def take(self, records: list[Record], row: Row) -> Counter[str]:
        died = self.epoch > row["epoch"]
        rejected = super().take(records, row)
        if died:
            for key, members in self.short.items():
                self.short[key] = members + members[-1:]
        return rejected


class WorksOutItsOwnWatermark(MadeUpJob):
    """Late is what is behind the newest record seen so far, not what is behind the slice's watermark."""

    def take(self, records: list[Record], row: Row) -> Counter[str]:
        recorded = row["watermark_ms"]
        row["watermark_ms"] = None if recorded is None else recorded + 7_000
        rejected = super().take(records, row)
        row["watermark_ms"] = recorded
        return rejected


class RaisesTheWatermark(MadeUpJob):
    """By an hour; all that follows from it is as it would be: what is late, what is closed, every account."""

    def watermark(self, row: Row, before: Row | None) -> int | None:
        watermark_ms = super().watermark(row, before)
        return watermark_ms + 3_600_000 if watermark_ms is not None and row["number"] == 30 else watermark_ms


class RaisesTheClose(MadeUpJob):
    """By an hour, and the watermark after it follows."""

    def closes(self, row: Row) -> int | None:
        closes_ms = super().closes(row)
        return closes_ms + 3_600_000 if closes_ms is not None and row["number"] == 30 else closes_ms


class FollowsTheNewestPartition(MadeUpJob):
    """And says that it follows the one that is furthest behind."""

    def watermark(self, row: Row, before: Row | None) -> int | None:
        return greatest(super().watermark(row, before), watermark_by(NEWEST, row["reached"], row["silence_ms"]))


class CountsSilenceOfABusyPartition(MadeUpJob):
    """The watermark is right, by silences that were none."""

    def silences(self, fed: set[int]) -> dict[str, int]:
        return {str(partition): 20_000 for partition in self.logged_ms}


class CountsNoSilence(MadeUpJob):
    """The silence that advances event time is in no slice."""

    def watermark(self, row: Row, before: Row | None) -> int | None:
        watermark_ms = super().watermark(row, before)
        row["silence_ms"] = {STREAM: {}}
        return watermark_ms


class ForgetsWhatWasReached(MadeUpJob):
    """A new run begins with no event time in any partition."""

    def begin_run(self) -> None:
        super().begin_run()
        self.reached = {}


class LetsTheFutureMoveEventTime(MadeUpJob):
    """A record that is too far ahead counts for the watermark, though it is refused."""

    def take(self, records: list[Record], row: Row) -> Counter[str]:
        rejected = super().take(records, row)
        for record in records:
            if self.reasons[id(record)] == "future_event":
                self.reached[str(record.partition)] = json.loads(record.value)["ts"]
        return rejected


class LosesRecordsOfAnOutage(MadeUpJob):
    """If the log doesn't answer, it continues after the gap."""

    def take(self, records: list[Record], row: Row) -> Counter[str]:
        return super().take(records[1:] if self.chance.random() < 0.2 else records, row)


class SumsInFloats(MadeUpJob):
    def write(self, stage: str, end_ms: int, by: Row, values: Row, row: Row, epoch: int) -> None:
        super().write(stage, end_ms, by, values | {"cost": float(values["cost"])}, row, epoch)


class IgnoresRefusedItems(MadeUpJob):
    """A bulk request with status 200 is taken for success, whatever its items say."""

    def write(self, stage: str, end_ms: int, by: Row, values: Row, row: Row, epoch: int) -> None:
        if self.chance.random() > 0.05:
            super().write(stage, end_ms, by, values, row, epoch)


class TakesAConflictForSuccess(MadeUpJob):
    """A result that an earlier attempt wrote with another computation stays unread."""

    def write(self, stage: str, end_ms: int, by: Row, values: Row, row: Row, epoch: int) -> None:
        stale = values | {"n": values["n"] - 1} if self.epoch > row["epoch"] else values
        super().write(stage, end_ms, by, stale, row, epoch)


class OverwritesOnARepeat(MadeUpJob):
    def write(self, stage: str, end_ms: int, by: Row, values: Row, row: Row, epoch: int) -> None:
        super().write(stage, end_ms, by, values, row, epoch)
        if self.epoch > row["epoch"]:
            self.dump.documents[-1]["_version"] += 1


class NamesTheIndexByTheClock(MadeUpJob):
    def write(self, stage: str, end_ms: int, by: Row, values: Row, row: Row, epoch: int) -> None:
        super().write(stage, end_ms, by, values, row, epoch)
        self.dump.documents[-1]["_index"] = f"{JOB}-{stage}-2026.11"


class TakesIdsFromTheAttempt(MadeUpJob):
    def write(self, stage: str, end_ms: int, by: Row, values: Row, row: Row, epoch: int) -> None:
        super().write(stage, end_ms, by, values, row, epoch)
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


class TakesANullKeyForAnEmptyText(MadeUpJob):
    def key_of(self, reading: Row) -> tuple[str | None, str | None]:
        return reading.get("site") or "", reading.get("client") or ""


class LeavesOutRecordsWithoutAKey(MadeUpJob):
    """A join does this with null."""

    def values_of(self, members: list[tuple[int, Row]]) -> Row:
        keyed = [(at, row) for at, row in members if row.get("client") is not None]
        return super().values_of(keyed or members)

    def key_of(self, reading: Row) -> tuple[str | None, str | None]:
        return reading.get("site"), reading.get("client") or "made-0"


class MissesTheKeyOfARecordWithoutIt(MadeUpJob):
    """A field that is missing has the value that it had in the record before."""

    before: str | None = None

    def key_of(self, reading: Row) -> tuple[str | None, str | None]:
        self.before = reading.get("client", self.before)
        return reading.get("site"), self.before


class AddsWithoutRounding(MadeUpJob):
    """Better than what is promised, and so another last bit than the next run's."""

    def added(self, values: Iterable[float]) -> float:
        return math.fsum(values)


class RoundsTiesToEven(MadeUpJob):
    def rounded(self, mean: float) -> float:
        return round(mean, 2)


class CutsMeansOff(MadeUpJob):
    def rounded(self, mean: float) -> float:
        return math.floor(mean * 100) / 100


class LetsFailedResultsGoOn(MadeUpJob):
    """Each has its dead letter."""

    def may_go_on(self, end_ms: int, by: Row, values: Row, row: Row, epoch: int) -> bool:
        return super().may_go_on(end_ms, by, values, row, epoch) or values["busy"] == 0


class FiltersFailedResultsSilently(MadeUpJob):
    """A condition without a value is taken for one that is false."""

    def bury_result(self, document: Row, step: str) -> None:
        if step == "steps[3].derive.crowd":
            super().bury_result(document, step)


class HasNoRoomForLargeLetters(MadeUpJob):
    """A letter that is too large for a topic of dead letters is omitted."""

    def bury_bytes(self, key: str, value: bytes, headers: dict[str, str]) -> None:
        if len(value) < LARGE_BYTES:
            super().bury_bytes(key, value, headers)


class IndexesNoFailedResult(MadeUpJob):
    def write(self, stage: str, end_ms: int, by: Row, values: Row, row: Row, epoch: int) -> None:
        if stage != "short" or values["busy"]:
            super().write(stage, end_ms, by, values, row, epoch)


class KeepsOpenWindowsOfTheVersionBefore(MadeUpJob):
    """A new version continues with the open windows instead of recomputing them."""

    def replay(self, closed_ms: int) -> None:
        pass


class HandsResultsToTheNextVersion(MadeUpJob):
    """A long window is made of results of two versions."""

    upgraded_after = tuple(range(25, 75, 5))  # often: some upgrades find no long window that holds a result

    def replay(self, closed_ms: int) -> None:
        results = {key: list(values) for key, values in self.long.items()}
        super().replay(closed_ms)
        self.long = defaultdict(list, results)


class EmitsWhatIsClosedAgain(MadeUpJob):
    """A new version emits the last window again that the version before it has emitted."""

    def replay(self, closed_ms: int) -> None:
        super().replay(closed_ms - self.pace.short_ms)


MUTANTS = [
    KeepsOpenWindowsOfTheVersionBefore,
    HandsResultsToTheNextVersion,
    EmitsWhatIsClosedAgain,
    TakesANullKeyForAnEmptyText,
    LeavesOutRecordsWithoutAKey,
    MissesTheKeyOfARecordWithoutIt,
    AddsWithoutRounding,
    RoundsTiesToEven,
    CutsMeansOff,
    LetsFailedResultsGoOn,
    FiltersFailedResultsSilently,
    HasNoRoomForLargeLetters,
    IndexesNoFailedResult,
    StartsAtTheLatest,
    ForgetsTheCascade,
    ReplaysTooMuch,
    WorksOutItsOwnWatermark,
    RaisesTheWatermark,
    RaisesTheClose,
    FollowsTheNewestPartition,
    CountsSilenceOfABusyPartition,
    CountsNoSilence,
    ForgetsWhatWasReached,
    LetsTheFutureMoveEventTime,
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
    made_up = kind(seed, JOB, STREAM, PACES[draw_speed(seed)])
    chance = random.Random(seed)
    for _ in range(150):
        made_up.slice(chance.choice((0, 5, 20)))
    return check_job(made_up.finish(), JOB, STREAM)


def seeds(in_make_test: int, in_all: int) -> list[Any]:
    return [*range(in_make_test), *(pytest.param(one, marks=pytest.mark.long) for one in range(in_make_test, in_all))]


@pytest.mark.parametrize("mutant", one_in(3, MUTANTS), ids=lambda mutant: mutant.__name__)
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_a_platform_that_goes_wrong_is_found_out(seed: int, mutant: type[MadeUpJob]) -> None:
    assert run(mutant, seed).violations


class OnABrokerWhoseClockSteps(MadeUpJob):
    """The broker's clock steps six hours forward, and later six hours back. The count of silence doesn't use it."""

    STEPS = ((50, 60, 21_600_000), (90, 100, -21_600_000))
    """Steps: from this slice on, until that one, by this number of ms."""
    RATE = 1.0
    """How many seconds it goes in a second then."""

    def append(self, count: int) -> list[Record]:
        number, now_ms = len(self.dump.tables["slices"]) + 1, self.log_ms
        for first, end, ahead_ms in self.STEPS:
            if number == first:
                self.broker_ahead_ms, self.since_ms = ahead_ms, now_ms
            elif number == end:
                self.dump.log_time_steps.append((self.since_ms, now_ms, ahead_ms, self.RATE))
                self.broker_ahead_ms = 0
            elif first < number < end:
                self.broker_ahead_ms = ahead_ms + int((now_ms - self.since_ms) * (self.RATE - 1))
        return super().append(count)


class CountsSilenceByTheLogsClock(OnABrokerWhoseClockSteps):
    def silences(self, fed: set[int]) -> dict[str, int]:
        return {one: max(0, ms + self.broker_ahead_ms) for one, ms in super().silences(fed).items()}


class OnABrokerWhoseClockIsSlow(OnABrokerWhoseClockSteps):
    RATE = 0.5


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_the_clock_of_a_broker_may_step_and_drift_and_is_no_silence(seed: int) -> None:
    assert run(OnABrokerWhoseClockSteps, seed).violations == []
    assert run(OnABrokerWhoseClockIsSlow, seed).violations == []
    assert run(CountsSilenceByTheLogsClock, seed).watermark


class WithAFastClock(MadeUpJob):
    """The runner counts twice the silence that there is."""

    def silences(self, fed: set[int]) -> dict[str, int]:
        return {one: 2 * ms for one, ms in super().silences(fed).items()}


class OnAMachineWithAFastClock(WithAFastClock):
    def finish(self) -> Dump:
        dump = super().finish()
        dump.silence_drifts = [(0, self.log_ms, 2.0)]
        return dump


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_a_clock_that_runs_fast_counts_more_silence_and_only_then_may_it(seed: int) -> None:
    assert run(OnAMachineWithAFastClock, seed).violations == []
    assert run(WithAFastClock, seed).watermark


IN_TIME_AND_LATE = [RaisesTheWatermark, RaisesTheClose, FollowsTheNewestPartition]


@pytest.mark.parametrize("mutant", IN_TIME_AND_LATE, ids=lambda mutant: mutant.__name__)
def test_records_that_the_load_sent_in_time_are_late_without_cause(mutant: type[MadeUpJob]) -> None:
    """Found by what the load intended, whatever the ledger says."""
    verdicts = [run(mutant, seed) for seed in range(3)]
    assert any(verdict.late_without_cause for verdict in verdicts)
    assert all(verdict.watermark for verdict in verdicts)


@pytest.mark.parametrize("seed", seeds(1, 10))
def test_one_that_does_not_is_left_alone(seed: int) -> None:
    assert run(MadeUpJob, seed).violations == []
