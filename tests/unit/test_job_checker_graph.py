"""The checker of the graph job accepts right runs, and finds each platform with an error.

The errors are in a session, in a window that counts, in a join or in a lookup.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from strandline.processing.desk.desk import Desk, DeskResult, LocalDeadLetter, Outcome
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.desk.records import DeskRecords
from strandline.services.jobs.apply_documents import check_documents
from tests.support.chaos.checker import JobVerdict, check_job
from tests.support.chaos.checking.documents import Expected
from tests.support.chaos.checking.graph.lookups import LOOKUP, rows_of
from tests.support.chaos.checking.graph.pipeline import STAGES
from tests.support.chaos.checking.pace import PACES, Pace, Windows
from tests.support.chaos.checking.versions import Version
from tests.support.chaos.dump import Record, Row
from tests.support.chaos.graph_job import graph_document, graph_job, lookup_document
from tests.support.chaos.made_up_graph import MadeUpGraph, made_up_graph
from tests.support.chaos.planted.in_ledger import JOB, STREAM
from tests.support.chaos.work import NULL_SHARE, make_reading, stream_document

GRAPH = graph_job(JOB, STREAM)


def run(kind: type[MadeUpGraph], seed: int, pace: Pace = PACES[20]) -> JobVerdict:
    dump = made_up_graph(seed, JOB, STREAM, pace, kind)
    return check_job(dump, JOB, STREAM, GRAPH.pipeline)


@pytest.mark.parametrize("pace", PACES.values(), ids=lambda pace: f"{pace.speed}x")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))])
def test_a_right_run_passes(seed: int, pace: Pace) -> None:
    dump = made_up_graph(seed, JOB, STREAM, pace)
    verdict = check_job(dump, JOB, STREAM, GRAPH.pipeline)
    assert verdict.violations == []
    assert verdict.records == verdict.accepted + verdict.late + verdict.refused
    stages = Counter(one["_source"]["strandline"]["stage"] for one in dump.documents)
    assert stages.keys() == {*STAGES} and min(stages.values()) > 10
    assert min(verdict.late, verdict.refused) > 10 and verdict.epochs > 2
    assert sum(letter.headers["reason"] == "lookup" for letter in dump.dead_letters) > 10


@pytest.mark.parametrize("pace", PACES.values(), ids=lambda pace: f"{pace.speed}x")
def test_the_checker_knows_the_windows_and_the_rule_of_the_document(pace: Pace) -> None:
    text = "---\n".join([stream_document(STREAM), lookup_document(1), graph_document(GRAPH, pace, 1)])
    (document,) = check_documents(text, "chaos.yaml", {}).pipelines
    known = GRAPH.pipeline(pace)
    assert [one.name for one in document.stages] == list(known.windows) == list(GRAPH.stages)
    for stage in document.stages:
        shape = stage.shape
        expected = Windows(1, 1) if shape.ends_move else Windows(shape.size_ms, shape.every_ms)
        assert known.windows[stage.name] == expected
    rule = document.event_time_rule.written
    assert known.rule == rule


def at_the_desk(values: list[bytes], version: int) -> tuple[dict[str, tuple[str, Row]], dict[tuple[int, int], str]]:
    """Return index and document by id, and the reasons for refused records, by partition and offset.

    The records are in two partitions. The job is killed now and then.
    """
    pace = PACES[20]
    text = "---\n".join([stream_document(STREAM), lookup_document(version), graph_document(GRAPH, pace, version)])
    desk = Desk(read_pipeline(text.encode(), "chaos.yaml"), 40, restarts=True)
    outcomes: list[Outcome] = []
    for first in range(0, len(values), 200):
        few = values[first : first + 200]
        outcomes += desk.feed(DeskRecords(few, [at % 2 for at in range(len(few))]))
        desk.restart()
    outcomes += desk.drain()
    results = [one.document for one in outcomes if isinstance(one, DeskResult)]
    letters = [one for one in outcomes if isinstance(one, LocalDeadLetter)]
    documents = {one.id: (one.index, json.loads(one.source)) for one in results}
    return documents, {(int(one.place["partition"]), int(one.place["offset"])): one.reason for one in letters}


@pytest.mark.guarantee(
    "G599",
    "Whatever is killed under a job with branches, sessions, count windows, a join, and a changing lookup, each "
    "result is there once with the right value. Each record is enriched by the version that its slice recorded, in "
    "every replay.",
    promise="kills-and-restarts-change-no-result",
)
@pytest.mark.parametrize("version", [2, pytest.param(1, marks=pytest.mark.long)])
def test_operators_give_what_the_checker_works_out_from_the_log(version: int) -> None:
    """To the last bit, though they share no code, and through restarts."""
    chance, now_ms, values = random.Random(version), 1_793_490_000_000, list[bytes]()
    while len(values) < 800:
        client = f"made-{chance.randrange(4)}"
        key = None if chance.random() < NULL_SHARE else client
        _, value, reason = make_reading(chance, f"{client}-{len(values)}", key, now_ms, now_ms)
        if reason not in ("future_event", "schema", "decode"):
            values.append(value)
        now_ms += chance.choice((0, 100, 500, 1_000)) + 20_000 * (chance.random() < 0.01)
    documents, reasons = at_the_desk(values, version)
    known = GRAPH.pipeline(PACES[20])
    row = {"number": 1, "version": version, "watermark_ms": None, "lookup_versions": {LOOKUP: version}}
    judged = [known.judge(Record(at % 2, at // 2, now_ms, None, value, {}), row) for at, value in enumerate(values)]
    in_order = sorted(judged, key=lambda one: (one.record.partition, one.record.offset))
    in_time = [one for one in in_order if reasons.get((one.record.partition, one.record.offset)) != "late"]
    assert 10 < len(in_time) < len(judged)
    assert all(reasons.get((one.record.partition, one.record.offset)) == one.reason for one in in_time)
    results = known.results(in_time, Version(version))
    expected = [
        Expected(JOB, key[0], known.windows[key[0]].size_ms, result, 1, 1, (1, 1), emission_last=10**6)
        for key, result in results.items()
    ]
    assert {one.id for one in expected} == documents.keys()
    assert {key[0] for key in results} == {*STAGES}
    assert [problem for one in expected for problem in one.differences(*documents[one.id])] == []


def test_no_two_versions_of_the_lookup_say_the_same() -> None:
    versions = [repr(rows_of(version)) for version in range(1, 40)]
    assert len(set(versions)) == len(versions)
    assert {len(rows_of(version)) for version in range(1, 7)} == {2, 3}


class MergesSessionsTooFar(MadeUpGraph):
    """A gap of one and a half."""

    def begins_chain(self, before: Row | None, one: Row) -> bool:
        return before is None or one["ts"] - before["ts"] >= self.pace.short_ms * 3 // 2


class SplitsSessionsBetweenSlices(MadeUpGraph):
    """A session is separate in each slice."""

    def begins_chain(self, before: Row | None, one: Row) -> bool:
        return super().begins_chain(before, one) or (before is not None and before["slice"] != one["slice"])


class NeverCutsSessions(MadeUpGraph):
    def cuts(self, first_ms: int, last_ms: int) -> list[int]:
        return []


class CutsSessionsByTheClockAlone(MadeUpGraph):
    """Also the first time."""

    def cuts(self, first_ms: int, last_ms: int) -> list[int]:
        length_ms = self.pace.long_ms
        return [*range(first_ms - first_ms % length_ms, last_ms + 2 * length_ms, length_ms)]


class CountsByArrival(MadeUpGraph):
    def counted(self, rows: list[Row]) -> Iterator[tuple[int, int, list[Row]]]:
        yield from super().counted(sorted(rows, key=lambda one: (one["partition"], one["offset"])))


class CountsOnFromPeriodToPeriod(MadeUpGraph):
    def counted(self, rows: list[Row]) -> Iterator[tuple[int, int, list[Row]]]:
        for number, first in enumerate(range(0, len(rows) - 4, 5)):
            window = rows[first : first + 5]
            yield number, window[-1]["ts"] + 1, window


class LosesPairsAcrossSlices(MadeUpGraph):
    """Rows of a pair in different slices are lost: the first is forgotten."""

    def are_partners(self, left: Row, right: Row) -> bool:
        return super().are_partners(left, right) and left["slice"] == right["slice"]


class JoinsNulls(MadeUpGraph):
    def are_partners(self, left: Row, right: Row) -> bool:
        is_null = left.get("client") is None and right.get("client") is None
        near_ms = right["ts"] - left["ts"]
        return super().are_partners(left, right) or (is_null and 0 <= near_ms <= self.pace.short_ms)


class JoinsAtTheBorderNoMore(MadeUpGraph):
    """Rows before the left row are forgotten."""

    def are_partners(self, left: Row, right: Row) -> bool:
        return super().are_partners(left, right) and right["ts"] >= left["ts"]


class MakesPairsTwice(MadeUpGraph):
    """Each side makes the pair, as its own."""

    def pairs(self, rows: list[Row]) -> Iterator[tuple[Row, Row | None, int, int]]:
        for one in super().pairs(rows):
            yield one
            if one[1] is not None:
                yield one[1], one[0], one[2], one[3]


class WritesPairsTwice(MadeUpGraph):
    """Results that a killed run had written are written again."""

    def pairs(self, rows: list[Row]) -> Iterator[tuple[Row, Row | None, int, int]]:
        for one in super().pairs(rows):
            yield from [one] * (1 + (self.epoch > self.dump.tables["slices"][-1]["epoch"]))


class TellsThatOneWithAPartnerHasNone(MadeUpGraph):
    def pairs(self, rows: list[Row]) -> Iterator[tuple[Row, Row | None, int, int]]:
        for left, right, start_ms, end_ms in super().pairs(rows):
            yield left, right, start_ms, end_ms
            if right is not None:
                yield left, None, left["ts"], left["ts"] + self.pace.short_ms + 1


class ReplaysByTheNewestVersion(MadeUpGraph):
    """Each start enriches what it reads again by the rows that are there now."""

    def begin_run(self) -> None:
        super().begin_run()
        for _, _, reading in self.taken:
            if "slice" in reading:
                self.enrich(reading, self.lookup)


class GoesByTheVersionOfTheFirstSlice(MadeUpGraph):
    def take(self, records: list[Record], row: Row) -> Counter[str]:
        recorded = row["lookup_versions"]
        row["lookup_versions"] = {LOOKUP: 1}
        rejected = super().take(records, row)
        row["lookup_versions"] = recorded
        return rejected


class IsSlowToSeeNewVersions(MadeUpGraph):
    """And says so: all follows from the version that it records."""

    def lookup_versions(self) -> dict[str, int]:
        newest = super().lookup_versions()[LOOKUP]
        self.seen = [*getattr(self, "seen", [1] * 5), newest]
        return {LOOKUP: self.seen[-6]}


class GoesBackToAnOldVersion(MadeUpGraph):
    def lookup_versions(self) -> dict[str, int]:
        newest = super().lookup_versions()[LOOKUP]
        return {LOOKUP: 1 if len(self.dump.tables["slices"]) == 30 else newest}


class RefusesForAllBranches(MadeUpGraph):
    """A record that one branch can't use comes to none."""

    def take(self, records: list[Record], row: Row) -> Counter[str]:
        before = len(self.taken)
        rejected = super().take(records, row)
        self.taken[before:] = [one for one in self.taken[before:] if one[2]["plan"] is not None]
        return rejected


QUICK: dict[type[MadeUpGraph], str] = {
    MergesSessionsTooFar: "lost",
    SplitsSessionsBetweenSlices: "foreign",
    CountsByArrival: "lost",
    LosesPairsAcrossSlices: "lost",
    MakesPairsTwice: "foreign",
    ReplaysByTheNewestVersion: "wrong",
    IsSlowToSeeNewVersions: "ledger",
}
MUTANTS = QUICK | {
    NeverCutsSessions: "lost",
    CutsSessionsByTheClockAlone: "foreign",
    CountsOnFromPeriodToPeriod: "lost",
    JoinsNulls: "foreign",
    JoinsAtTheBorderNoMore: "lost",
    WritesPairsTwice: "repeated",
    TellsThatOneWithAPartnerHasNone: "foreign",
    GoesByTheVersionOfTheFirstSlice: "wrong",
    GoesBackToAnOldVersion: "ledger",
    RefusesForAllBranches: "wrong",
}


@pytest.mark.parametrize("mutant", QUICK, ids=lambda mutant: mutant.__name__)
def test_a_platform_that_goes_wrong_is_found_out(mutant: type[MadeUpGraph]) -> None:
    assert getattr(run(mutant, 0), MUTANTS[mutant]) != []


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_platform_that_goes_wrong_is_found_out(mutant: type[MadeUpGraph]) -> None:
    """In some of a few runs: not in each comes what it does wrong."""
    assert any(getattr(run(mutant, seed), MUTANTS[mutant]) for seed in range(4))


def test_a_dead_letter_that_names_other_branches_is_found() -> None:
    dump = made_up_graph(0, JOB, STREAM)
    letter = next(one for one in dump.dead_letters if one.headers.get("taken-by"))
    letter.headers["taken-by"] = "plans"
    assert check_job(dump, JOB, STREAM, GRAPH.pipeline).wrong
