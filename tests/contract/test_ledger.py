"""The guarantees of the ledger, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from threading import Barrier
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from strandline.core.errors import Conflict, Fenced, InvalidSettings, LedgerBehind, LedgerUnavailable, NotFound
from strandline.ledger.database import Database
from strandline.ledger.jobs import JobMove
from strandline.ledger.journal import NewEvent
from strandline.ledger.ledger import Ledger
from strandline.ledger.progress import RunEnd, RunRequest
from strandline.ledger.states import (
    JOB_MOVES,
    NO_TOTALS,
    ORDERED_MOVES,
    BackfillState,
    Desired,
    EventRow,
    EventTimeRule,
    JobState,
    SliceKind,
    SliceStatus,
    StageSink,
    Totals,
    WindowRange,
)
from tests.support.ledgers import a_checkpoint, a_slice, run_sql
from tests.support.waiting import stretched


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    opened = Ledger.open(ledger_url)
    yield opened
    opened.close()


@pytest.fixture
def database(ledger_url: str) -> Iterator[Database]:
    """Connections of their own to the same database."""
    opened = Database(ledger_url)
    yield opened
    opened.close()


@pytest.fixture
def running(ledger: Ledger) -> Ledger:
    """A ledger with the job `power`, in its first run."""
    ledger.submit_job("power", "pipeline: power", {"pipeline": "power"})
    ledger.begin_run("power", pid=4711)
    return ledger


def commit_slices(ledger: Ledger, first: int, last: int, epoch: int = 1) -> None:
    for number in range(first, last + 1):
        ledger.plan_slice(a_slice(number, epoch))
        ledger.commit_checkpoint(a_checkpoint(number, epoch))


class TestStreams:
    def test_a_stream_is_kept_with_its_document(self, ledger: Ledger) -> None:
        document = {"stream": "turbines", "schema": {"ts": {"type": "timestamp"}}, "note": "Ærø \x00 \ud800"}
        row = ledger.put_stream("turbines", document)
        assert (row.version, row.topic_id, row.document) == (1, None, document)
        assert ledger.stream("turbines") == row
        assert list(ledger.stream("turbines").document) == list(document), "the order of the fields is kept"

    def test_the_same_document_again_changes_nothing(self, ledger: Ledger) -> None:
        row = ledger.put_stream("turbines", {"partitions": 4})
        assert ledger.put_stream("turbines", {"partitions": 4}) == row

    def test_another_document_is_another_version(self, ledger: Ledger) -> None:
        row = ledger.put_stream("turbines", {"partitions": 4})
        ledger.set_topic_id("turbines", "abc")
        changed = ledger.put_stream("turbines", {"partitions": 8})
        assert changed == replace(row, version=2, document={"partitions": 8}, topic_id="abc")

    def test_streams_are_listed_by_name(self, ledger: Ledger) -> None:
        for name in ("b", "a", "c"):
            ledger.put_stream(name, {})
        assert [row.name for row in ledger.streams()] == ["a", "b", "c"]

    @pytest.mark.parametrize("name", ["nowhere", "no\0where", "\ud800", "'; DROP TABLE streams; --"])
    def test_an_unknown_stream_is_not_found(self, ledger: Ledger, name: str) -> None:
        with pytest.raises(NotFound):
            ledger.stream(name)
        with pytest.raises(NotFound):
            ledger.set_topic_id(name, "abc")
        assert ledger.streams() == []

    def test_an_entrance_leads_into_one_stream(self, ledger: Ledger) -> None:
        ledger.put_stream("one", udp_stream("one", 1))
        with pytest.raises(Conflict, match="UDP port 1 belongs to stream one already"):
            ledger.put_stream("two", udp_stream("two", 1))
        assert [row.name for row in ledger.streams()] == ["one"]
        ledger.put_stream("two", udp_stream("two", 2))
        for name, port in (("one", 2), ("two", 1)):  # together they may swap
            assert ledger.put_stream(name, udp_stream(name, port), 1, together={"one", "two"}).version == 2

    @pytest.mark.guarantee("G710")
    def test_of_many_streams_that_take_an_entrance_at_once_one_gets_it(self, ledger: Ledger, ledger_url: str) -> None:
        """Each from a connection of its own, as two control services would: round after round."""
        racers = [Ledger.open(ledger_url) for _ in range(4)]
        meeting = Barrier(len(racers))

        def take(number: int, round: int) -> bool:
            meeting.wait(stretched(60))
            name = f"s{round}-{number}"
            try:
                racers[number].put_stream(name, udp_stream(name, 1_000 + round))
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(len(racers)) as pool:
            for round in range(10):
                taken = list(pool.map(take, range(len(racers)), [round] * len(racers)))
                assert (taken.count(True), len(ledger.streams())) == (1, round + 1)
        for racer in racers:
            racer.close()

    def test_a_job_needs_its_streams(self, ledger: Ledger) -> None:
        ledger.put_stream("turbines", {})
        with pytest.raises(Conflict, match="Stream minutes was deleted"):
            ledger.submit_job("power", "", {}, streams_used={"turbines", "minutes"})
        assert ledger.jobs() == []
        ledger.submit_job("power", "", {}, streams_used={"turbines"})
        ledger.delete_stream("turbines", {"power": 1})
        with pytest.raises(Conflict, match="Stream turbines was deleted"):
            ledger.submit_job("power", "", {}, streams_used={"turbines"})

    @pytest.mark.guarantee(
        "G710",
        "If documents are applied or deleted concurrently, each job still has its streams, and each port or MQTT "
        "topic filter leads to one stream: the later request is refused. A job that lost its stream is shown with a "
        "warning, and hides no other.",
        promise="unusable-documents-are-refused",
    )
    def test_of_a_stream_that_is_deleted_and_a_job_that_needs_it_one_is_refused(
        self, ledger: Ledger, ledger_url: str
    ) -> None:
        racers = [Ledger.open(ledger_url) for _ in range(2)]
        meeting = Barrier(2)

        def submit(name: str) -> bool:
            return _is_done(meeting, partial(racers[0].submit_job, name, "", {}, streams_used=[name]))

        def delete(name: str) -> bool:
            checked = {job.name: job.version for job in ledger.jobs()}
            return _is_done(meeting, partial(racers[1].delete_stream, name, checked))

        with ThreadPoolExecutor(2) as pool:
            for round in range(20):
                name = f"s{round}"
                ledger.put_stream(name, {})
                submitted, deleted = pool.submit(submit, name), pool.submit(delete, name)
                assert submitted.result() != deleted.result()
                assert [row.name for row in ledger.streams()] == [row.name for row in ledger.jobs()]
        for racer in racers:
            racer.close()


def udp_stream(name: str, port: int) -> dict[str, Any]:
    return {"stream": name, "schema": {"n": {"type": "long"}}, "udp": {"port": port}}


def _is_done(meeting: Barrier, change: Callable[[], object]) -> bool:
    meeting.wait(stretched(60))
    try:
        change()
    except Conflict:
        return False
    return True


class TestInputs:
    def test_the_document_of_a_jobs_first_run_stays(self, running: Ledger) -> None:
        running.put_stream("turbines", {"n": 1})
        assert running.input_document("power", "turbines") is None
        assert running.record_input("power", "turbines", {"n": 1}) == {"n": 1}
        assert running.record_input("power", "turbines", {"n": 2}) == {"n": 1}
        assert running.input_document("power", "turbines") == {"n": 1}
        running.submit_job("other", "", {})
        assert running.record_input("other", "turbines", {"n": 2}) == {"n": 2}

    def test_unknown_ones_are_not_found(self, running: Ledger) -> None:
        with pytest.raises(NotFound):
            running.record_input("power", "nowhere", {})
        running.put_stream("turbines", {})
        with pytest.raises(NotFound):
            running.record_input("none", "turbines", {})


class TestJobs:
    def test_a_new_job_is_wanted_running(self, ledger: Ledger) -> None:
        row = ledger.submit_job("power", "pipeline: power # as given", {"pipeline": "power"})
        assert (row.version, row.desired, row.state, row.epoch) == (1, Desired.RUNNING, JobState.CREATED, 0)
        assert ledger.job("power") == row
        assert ledger.job_version("power").text == "pipeline: power # as given"

    def test_the_same_document_again_changes_nothing(self, ledger: Ledger) -> None:
        row = ledger.submit_job("power", "one", {"a": 1})
        ledger.set_desired("power", Desired.STOPPED)
        again = ledger.submit_job("power", "one, with a comment", {"a": 1})
        assert again == replace(row, desired=Desired.STOPPED, updated_ms=again.updated_ms)
        assert ledger.job_version("power").text == "one"

    def test_another_document_is_another_version_and_the_first_stays(self, ledger: Ledger) -> None:
        ledger.submit_job("power", "one", {"a": 1})
        ledger.set_desired("power", Desired.STOPPED)
        row = ledger.submit_job("power", "two", {"a": 2})
        assert (row.version, row.desired) == (2, Desired.STOPPED)
        assert ledger.job_version("power").document == {"a": 2}
        assert ledger.job_version("power", 1).document == {"a": 1}
        with pytest.raises(NotFound):
            ledger.job_version("power", 3)

    def test_jobs_are_listed_by_name(self, ledger: Ledger) -> None:
        for name in ("b", "a"):
            ledger.submit_job(name, "", {})
        assert [row.name for row in ledger.jobs()] == ["a", "b"]

    def test_an_unknown_job_is_not_found(self, ledger: Ledger) -> None:
        for call in (
            lambda: ledger.job("none"),
            lambda: ledger.job_version("none"),
            lambda: ledger.set_desired("none", Desired.STOPPED),
            lambda: ledger.move_job("none", JobState.STARTING),
            lambda: ledger.begin_run("none", 1),
            lambda: ledger.end_run("none", 1, "stopped"),
            lambda: ledger.plan_slice(a_slice(1, job="none")),
            lambda: ledger.commit_checkpoint(a_checkpoint(1, job="none")),
            lambda: ledger.checkpoint("none", 1),
        ):
            with pytest.raises(NotFound):
                call()
        assert ledger.last_slice("none") is None
        assert ledger.last_checkpoint("none") is None
        assert ledger.totals("none") == Totals(0, 0, {}, {}, {})

    def test_an_order_sets_the_state_that_follows_at_once_and_no_other(
        self, ledger: Ledger, database: Database
    ) -> None:
        ledger.submit_job("power", "", {})
        for origin, desired in product(JobState, Desired):
            with database.writing("force a state") as connection:
                forced = sa.text("UPDATE jobs SET state = :state, message = 'as it was'")
                connection.execute(forced, {"state": origin.value})
            moved = ledger.set_desired("power", desired)
            state = ORDERED_MOVES.get((origin, desired))
            assert (moved.desired, moved.state) == (desired, state or origin)
            assert moved.message == ("" if state else "as it was")
            assert state is None or state in JOB_MOVES[origin]

    def test_only_the_moves_of_the_table_are_legal(self, ledger: Ledger, database: Database) -> None:
        ledger.submit_job("power", "", {})
        for origin, target in product(JobState, JobState):
            with database.writing("force a state") as connection:
                connection.execute(sa.text("UPDATE jobs SET state = :state"), {"state": origin.value})
            if target is origin or target in JOB_MOVES[origin]:
                moved = ledger.move_job("power", target, "because")
                assert (moved.state, moved.message) == (target, "because")
            else:
                with pytest.raises(Conflict, match=f"is {origin.value} and can't become {target.value}"):
                    ledger.move_job("power", target)
                assert ledger.job("power").state is origin

    def test_an_old_run_can_not_move_the_job(self, running: Ledger) -> None:
        running.move_job("power", JobState.STARTING, epoch=1)
        running.begin_run("power", pid=2)
        with pytest.raises(Fenced):
            running.move_job("power", JobState.RUNNING, epoch=1)
        assert running.move_job("power", JobState.RUNNING, epoch=2).state is JobState.RUNNING


INDEX = StageSink("elasticsearch", "minutes", "per_minute")
RESULTS = StageSink("stream", "minutes", "per_minute")


class TestPlaces:
    def test_a_job_has_the_places_of_its_present_version(self, ledger: Ledger) -> None:
        ledger.submit_job("power", "", {"a": 1}, [RESULTS, INDEX])
        assert ledger.places("power") == [INDEX, RESULTS]
        ledger.submit_job("power", "", {"a": 2}, [INDEX])
        ledger.submit_job("heat", "", {"a": 1}, [RESULTS])
        assert (ledger.places("power"), ledger.places("heat")) == ([INDEX], [RESULTS])

    def test_one_place_has_one_stage_and_the_refused_submission_changes_nothing(self, ledger: Ledger) -> None:
        ledger.submit_job("power", "", {"a": 1}, [INDEX])
        free = StageSink("stream", "free", "per_minute")
        with pytest.raises(Conflict, match="emit to elasticsearch minutes, because stage per_minute of power does"):
            ledger.submit_job("heat", "", {}, [INDEX, free])
        with pytest.raises(Conflict, match="because stage per_hour of power does"):
            ledger.submit_job("power", "", {"a": 2}, [INDEX, INDEX._replace(stage="per_hour")])
        assert [(row.name, row.version) for row in ledger.jobs()] == [("power", 1)]
        assert (ledger.places("power"), ledger.places("heat")) == ([INDEX], [])

    def test_jobs_that_are_submitted_together_may_swap_their_places(self, ledger: Ledger) -> None:
        ledger.submit_job("power", "", {"a": 1}, [INDEX])
        ledger.submit_job("heat", "", {"a": 1}, [RESULTS])
        for job, place in (("power", RESULTS), ("heat", INDEX)):
            ledger.submit_job(job, "", {"a": 2}, [place], together={"power", "heat"})
        assert (ledger.places("power"), ledger.places("heat")) == ([RESULTS], [INDEX])

    @pytest.mark.guarantee(
        "G26",
        "An alias or a stream of results has one stage that emits to it, however many documents are applied "
        "concurrently.",
        promise="unusable-documents-are-refused",
    )
    def test_of_many_that_take_a_place_at_once_one_gets_it(self, ledger: Ledger, ledger_url: str) -> None:
        """Each from a connection of its own, as two control services would: round after round."""
        racers = [Ledger.open(ledger_url) for _ in range(4)]
        meeting = Barrier(len(racers))

        def take(number: int, round: int) -> bool:
            meeting.wait(stretched(60))
            try:
                racers[number].submit_job(f"{round}-{number}", "", {}, [StageSink("stream", str(round), "s"), INDEX])
            except Conflict:
                return False
            return True

        ledger.submit_job("power", "", {})
        with ThreadPoolExecutor(len(racers)) as pool:
            for round in range(10):
                taken = list(pool.map(take, range(len(racers)), [round] * len(racers)))
                owners = [row.name for row in ledger.jobs() if ledger.places(row.name)]
                assert (taken.count(True), len(owners)) == (1, 1), "a refused application left nothing"
                ledger.submit_job(owners[0], "", {"free": True})
        for racer in racers:
            racer.close()


class TestDeletedLetters:
    @pytest.mark.guarantee("G712")
    @pytest.mark.guarantee("G742")
    def test_a_name_is_not_used_anew_until_its_dead_letters_are_deleted(self, ledger: Ledger) -> None:
        ledger.submit_job("power", "", {})
        with pytest.raises(NotFound):
            ledger.begin_deletion_of_letters("power")
        ledger.delete_job(ledger.end_runs("power", "deleted"), {0: 17})
        first = ledger.begin_deletion_of_letters("power")
        with pytest.raises(Conflict, match="dead letters of job power, which was deleted, are being deleted"):
            ledger.submit_job("power", "", {}, origin={})
        second = ledger.begin_deletion_of_letters("power")  # the first one was killed, or is slow
        for end in (ledger.require_deletion_of_letters, ledger.keep_letters, ledger.forget_letters):
            with pytest.raises(Conflict, match="another deletion of the dead letters"):
                end("power", first)
        with pytest.raises(Conflict, match="are being deleted"):
            ledger.require_free_name("power")
        ledger.require_deletion_of_letters("power", second)
        ledger.forget_letters("power", second)
        assert ledger.begin_deletion_of_letters("power") not in (first, second), (
            "one that is still slow is none of these"
        )
        ledger.forget_letters("power", ledger.begin_deletion_of_letters("power"))
        ledger.require_free_name("power")
        assert ledger.submit_job("power", "", {}, origin={}).letters_first == 0
        checkpoint = ledger.last_checkpoint("power")
        assert checkpoint is not None and checkpoint.dead_letter_offsets == {}
        with pytest.raises(NotFound):
            ledger.begin_deletion_of_letters("power")

    def test_what_is_deleted_of_an_earlier_job_is_nothing_of_the_present_one(self, ledger: Ledger) -> None:
        ledger.submit_job("power", "", {})
        ledger.delete_job(ledger.end_runs("power", "deleted"), {0: 17})
        deletion = ledger.begin_deletion_of_letters("power")
        ledger.keep_letters("power", deletion)
        ledger.submit_job("power", "", {}, origin={})
        for end in (ledger.require_deletion_of_letters, ledger.keep_letters, ledger.forget_letters):
            with pytest.raises(Conflict, match="another deletion of the dead letters"):
                end("power", deletion)
        assert ledger.job("power").letters_first == 17
        checkpoint = ledger.last_checkpoint("power")
        assert checkpoint is not None and checkpoint.dead_letter_offsets == {0: 17}


class TestResultIndices:
    def test_an_index_is_remembered_once_however_many_make_it(self, ledger: Ledger) -> None:
        for job in ("power", "wind"):
            ledger.submit_job(job, "", {"pipeline": job})
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: ledger.add_result_index("power", "minute-2026.01"), range(16)))
        ledger.add_result_index("power", "minute-2026.02")
        assert ledger.result_indices("power") == {"minute-2026.01", "minute-2026.02"}
        assert ledger.result_indices("wind") == set()

    def test_an_unknown_job_makes_none(self, ledger: Ledger) -> None:
        with pytest.raises(NotFound):
            ledger.add_result_index("power", "minute-2026.01")


class TestRuns:
    def test_a_run_raises_the_epoch_and_ends_the_older_one(self, ledger: Ledger) -> None:
        ledger.submit_job("power", "", {"a": 1})
        first = ledger.begin_run("power", pid=1)
        ledger.submit_job("power", "", {"a": 2})
        second = ledger.begin_run("power", pid=2)
        assert (first.epoch, first.version, second.epoch, second.version) == (1, 1, 2, 2)
        assert ledger.job("power").epoch == 2
        old, new = ledger.runs("power")
        assert (old.outcome, old.message) == ("superseded", "run 2 took over")
        assert new == second
        assert (new.ended_ms, new.outcome) == (None, None)

    @pytest.mark.guarantee(
        "G18",
        "A new version of a pipeline takes over between two slices: each window is emitted by exactly one version, "
        "and equals the result of that version over all records.",
        promise="upgrades-backfills-and-resets-mix-no-results",
    )
    def test_a_slice_is_finished_by_the_version_that_planned_it(self, running: Ledger) -> None:
        """Some of its results may be out; a later version would say other things of the same windows."""
        running.plan_slice(a_slice(1))
        running.submit_job("power", "", {"a": 2})
        assert running.begin_run("power", pid=2).version == 1
        assert running.begin_run("power", pid=3, present_version=True).version == 2
        finishing = running.begin_run("power", pid=4)
        running.commit_checkpoint(a_checkpoint(1, finishing.epoch))
        assert running.begin_run("power", pid=5).version == 2

    @pytest.mark.guarantee("G772")
    def test_a_slice_is_finished_by_the_version_that_last_began_to_write_it(self, running: Ledger) -> None:
        """A version that took the slice over may have written some of its results."""
        running.plan_slice(a_slice(1))
        running.submit_job("power", "", {"a": 2})
        taken_over = running.begin_run("power", pid=2, present_version=True)
        assert running.begin_run("power", pid=3).version == 1, "it has written nothing"
        taken_over = running.begin_run("power", pid=4, present_version=True)
        running.set_run_slots("power", taken_over.epoch, 4)
        running.submit_job("power", "", {"a": 3})
        finishing = running.begin_run("power", pid=5)
        assert finishing.version == 2
        running.commit_checkpoint(a_checkpoint(1, finishing.epoch, version=2))
        assert running.begin_run("power", pid=6).version == 3

    def test_how_many_slots_a_run_has_is_kept_and_only_the_present_run_says_so(self, running: Ledger) -> None:
        assert [run.slots for run in running.runs("power")] == [0]
        running.set_run_slots("power", 1, 4)
        running.begin_run("power", pid=4712)
        running.set_run_slots("power", 2, 2)
        with pytest.raises(Fenced):
            running.set_run_slots("power", 1, 9)
        assert [run.slots for run in running.runs("power")] == [4, 2]

    def test_the_first_outcome_stays(self, running: Ledger) -> None:
        ended = running.end_run("power", 1, "stopped", "as asked")
        assert (ended.outcome, ended.message) == ("stopped", "as asked")
        assert running.end_run("power", 1, "died", "") == ended
        running.begin_run("power", pid=2)
        assert running.runs("power")[0] == ended


class TestSlices:
    def test_a_slice_comes_back_as_it_was_planned(self, running: Ledger) -> None:
        row = a_slice(
            1,
            kind=SliceKind.DRAIN,
            watermark_ms=None,
            rule=EventTimeRule(1, None, 2, "newest"),
            reached={"turbines": {0: 3}},
            silence_ms={"turbines": {1: 4}},
        )
        running.plan_slice(row)
        assert running.last_slice("power") == row
        assert running.slice_count("power") == 1

    def test_slices_are_read_in_order_with_both_ends(self, running: Ledger) -> None:
        commit_slices(running, 1, 12)
        assert [row.number for row in running.slices("power", 3, 11)] == list(range(3, 12))
        assert [row.number for row in running.slices("power", 11, 99)] == [11, 12]
        assert all(row.status is SliceStatus.COMMITTED for row in running.slices("power", 1, 12))
        assert running.slice_count("power") == 12

    def test_an_old_run_is_fenced(self, running: Ledger) -> None:
        running.begin_run("power", pid=2)
        with pytest.raises(Fenced, match="Run 1 of job power"):
            running.plan_slice(a_slice(1, epoch=1))
        with pytest.raises(Fenced):
            running.plan_slice(a_slice(1, epoch=3))
        assert running.last_slice("power") is None

    @pytest.mark.parametrize("number", [0, 1, 2, 4])
    def test_a_gap_or_a_repeat_is_refused(self, running: Ledger, number: int) -> None:
        commit_slices(running, 1, 2)
        with pytest.raises(Conflict, match="does not follow" if number <= 3 else "the ledger is older than"):
            running.plan_slice(a_slice(number))

    def test_the_first_slice_is_number_one(self, running: Ledger) -> None:
        with pytest.raises(Conflict, match="does not follow"):
            running.plan_slice(a_slice(0))

    @pytest.mark.parametrize("partitions", [{0: 10, 1: 21}, {0: 10}, {0: 9, 1: 20}, {0: 10, 1: 20, 2: 0}])
    def test_a_slice_begins_where_the_last_one_ends(self, running: Ledger, partitions: dict[int, int]) -> None:
        commit_slices(running, 1, 1)
        with pytest.raises(Conflict, match="begins at"):
            running.plan_slice(
                a_slice(2, offsets_first={"turbines": partitions}, offsets={"turbines": {0: 50, 1: 50, 2: 9}})
            )

    def test_a_slice_does_not_end_before_it_begins(self, running: Ledger) -> None:
        commit_slices(running, 1, 1)
        with pytest.raises(Conflict, match="ends before it begins"):
            running.plan_slice(a_slice(2, offsets={"turbines": {0: 20, 1: 19}}))

    def test_a_partition_that_is_new_may_join(self, running: Ledger) -> None:
        commit_slices(running, 1, 1)
        wider = a_slice(2, offsets={"turbines": {0: 20, 1: 40, 2: 5}})
        running.plan_slice(wider)
        assert running.last_slice("power") == wider

    def test_one_slice_at_most_is_planned(self, running: Ledger) -> None:
        running.plan_slice(a_slice(1))
        with pytest.raises(Conflict, match="before slice 1 is committed"):
            running.plan_slice(a_slice(2))

    def test_a_slice_is_not_born_committed(self, running: Ledger) -> None:
        with pytest.raises(Conflict):
            running.plan_slice(a_slice(1, status=SliceStatus.COMMITTED))

    def test_the_very_same_slice_again_changes_nothing(self, running: Ledger) -> None:
        """This occurs after a lost answer. Another cut under the same number is refused."""
        running.plan_slice(a_slice(1))
        running.plan_slice(a_slice(1))
        with pytest.raises(Conflict):
            running.plan_slice(a_slice(1, cut_time_ms=1))
        assert running.slices("power", 1, 9) == [a_slice(1)]


class TestCheckpoints:
    def test_a_checkpoint_comes_back_as_it_was_committed(self, running: Ledger) -> None:
        row = a_checkpoint(1, latest_event_ms=None, latest_log_ms=None, dead_letter_offsets={0: 3, 11: 4})
        running.plan_slice(a_slice(1))
        running.commit_checkpoint(row)
        assert running.last_checkpoint("power") == row
        assert running.checkpoint("power", 1) == row
        assert running.slices("power", 1, 1)[0].status is SliceStatus.COMMITTED

    def test_checkpoints_are_listed_newest_first(self, running: Ledger) -> None:
        commit_slices(running, 1, 12)
        assert [row.slice for row in running.checkpoints("power", limit=3)] == [12, 11, 10]
        assert [row.slice for row in running.checkpoints("power", limit=3, before=10)] == [9, 8, 7]
        assert running.checkpoint("power", 7) == a_checkpoint(7)
        with pytest.raises(NotFound):
            running.checkpoint("power", 13)

    def test_an_old_run_is_fenced_and_the_new_one_commits_what_it_planned(self, running: Ledger) -> None:
        running.plan_slice(a_slice(1, epoch=1))
        running.begin_run("power", pid=2)
        with pytest.raises(Fenced):
            running.commit_checkpoint(a_checkpoint(1, epoch=1))
        assert running.last_checkpoint("power") is None
        assert running.last_slice("power") == a_slice(1, epoch=1)
        running.commit_checkpoint(a_checkpoint(1, epoch=2))
        assert running.last_slice("power") == a_slice(1, epoch=1, status=SliceStatus.COMMITTED)

    @pytest.mark.parametrize("number", [0, 2, 3])
    def test_a_commit_out_of_turn_is_refused(self, running: Ledger, number: int) -> None:
        running.plan_slice(a_slice(1))
        with pytest.raises(Conflict, match="does not follow"):
            running.commit_checkpoint(a_checkpoint(number))

    def test_what_was_not_planned_is_not_committed(self, running: Ledger) -> None:
        commit_slices(running, 1, 1)
        with pytest.raises(Conflict, match="the ledger is older than"):
            running.commit_checkpoint(a_checkpoint(2))
        assert running.last_checkpoint("power") == a_checkpoint(1)

    def test_the_very_same_checkpoint_again_changes_nothing(self, running: Ledger) -> None:
        """This occurs after a lost answer. Another outcome for the same slice is refused."""
        commit_slices(running, 1, 2)
        running.commit_checkpoint(a_checkpoint(2))
        with pytest.raises(Conflict):
            running.commit_checkpoint(a_checkpoint(2, records=31))
        assert running.totals("power").records == 60

    @pytest.mark.parametrize(
        "fall",
        [
            {"latest_event_ms": 1_999},
            {"latest_event_ms": None},
            {"latest_log_ms": 2_199},
            {"closes_ms": 1_899},
            {"closes_ms": None},
            {"reached": {"turbines": {0: 3_000, 1: 1_999}}},
            {"reached": {"turbines": {0: 3_000}}},
            {"emitted": {"per_minute": 119_999}},
            {"result_offsets": {"turbine-minute": {0: 21, 1: 5}}},
            {"result_offsets": {"turbine-minute": {0: 21}}},
            {"result_offsets": {}},
        ],
        ids=str,
    )
    def test_what_never_falls_can_not_fall(self, running: Ledger, fall: dict[str, Any]) -> None:
        commit_slices(running, 1, 2)
        running.plan_slice(a_slice(3))
        with pytest.raises(Conflict):
            running.commit_checkpoint(a_checkpoint(3, **fall))
        assert running.last_slice("power") == a_slice(3), "nothing of the refused commit stays"

    def test_a_refused_row_leaves_the_slice_planned(self, running: Ledger) -> None:
        """Checkpoint and slice status are one transaction: the schema refuses the one, and the other goes back."""
        running.plan_slice(a_slice(1))
        with pytest.raises(Conflict):
            running.commit_checkpoint(a_checkpoint(1, accepted=-1))
        assert running.last_slice("power") == a_slice(1)
        assert running.last_checkpoint("power") is None

    def test_totals_add_up(self, running: Ledger) -> None:
        commit_slices(running, 1, 2)
        running.plan_slice(a_slice(3))
        running.commit_checkpoint(a_checkpoint(3, rejected={"schema": 4}, results={"hourly": 1}, refused={"hourly": 1}))
        assert running.totals("power") == Totals(
            records=90,
            accepted=84,
            rejected={"late": 2, "decode": 2, "schema": 4},
            results={"per_minute": 10, "hourly": 1},
            refused={"hourly": 1},
        )

    def test_first_slice_reaching_an_event_time(self, running: Ledger) -> None:
        for number, latest_event_ms in enumerate((None, 1_000, 1_000, 1_000, 5_000, 5_000, 9_000), start=1):
            running.plan_slice(a_slice(number))
            running.commit_checkpoint(a_checkpoint(number, latest_event_ms=latest_event_ms))
        expected = {-5: 2, 1_000: 2, 1_001: 5, 5_000: 5, 5_001: 7, 9_000: 7, 9_001: None}
        assert {event_ms: running.first_slice_reaching("power", event_ms) for event_ms in expected} == expected

    def test_jobs_do_not_see_each_other(self, running: Ledger) -> None:
        running.submit_job("other", "", {})
        running.begin_run("other", pid=9)
        commit_slices(running, 1, 3)
        running.plan_slice(a_slice(1, job="other"))
        running.commit_checkpoint(a_checkpoint(1, job="other", latest_event_ms=1))
        assert (running.slice_count("other"), running.slice_count("power")) == (1, 3)
        assert running.totals("other").records == 30
        assert running.first_slice_reaching("other", 2) is None


class TestManyJobs:
    """Slices and checkpoints of several jobs in one transaction, each under the conditions of its own job."""

    NAMES = ("fine", "fenced", "ended", "gap", "quiet")

    @pytest.fixture
    def many(self, running: Ledger) -> Ledger:
        for name in self.NAMES:
            running.submit_job(name, "", {"pipeline": name})
            running.begin_run(name, pid=1)
        running.begin_run("fenced", pid=2)
        running.end_run("ended", 1, "failed", "a test ended it")
        return running

    def test_a_slice_that_is_refused_leaves_the_others(self, many: Ledger) -> None:
        numbers = {"fine": 1, "fenced": 1, "ended": 1, "gap": 2, "no such job": 1, "quiet": 1}
        refused = many.plan_slices([a_slice(number, job=name) for name, number in numbers.items()])
        expected = {"fenced": Fenced, "ended": Fenced, "gap": LedgerBehind, "no such job": NotFound}
        assert {name: type(error) for name, error in refused.items()} == expected
        assert "was ended" in str(refused["ended"])
        found = many.progress_of([*numbers, "power"])
        assert many.jobs_named([*numbers, "power"]) == {name: one.job for name, one in found.items()}
        assert set(found) == {"fine", "fenced", "ended", "gap", "quiet", "power"}
        assert {name for name, one in found.items() if one.last_slice is not None} == {"fine", "quiet"}

    def test_a_checkpoint_that_is_refused_leaves_the_others(self, many: Ledger) -> None:
        many.plan_slices([a_slice(1, job="fine"), a_slice(1, job="quiet")])
        rows = [a_checkpoint(1, job=name) for name in ("fine", "fenced", "gap")]
        refused = many.commit_checkpoints([*rows, a_checkpoint(1, job="quiet", accepted=-1)])
        expected = {"fenced": Fenced, "gap": LedgerBehind, "quiet": Conflict}
        assert {name: type(error) for name, error in refused.items()} == expected
        found = many.progress_of(self.NAMES)
        assert {name for name, one in found.items() if one.last_checkpoint is not None} == {"fine"}
        assert found["fine"].last_checkpoint == a_checkpoint(1, job="fine")
        assert (found["fine"].totals.records, found["gap"].totals) == (30, NO_TOTALS)
        states = {name: one.last_slice and one.last_slice.status for name, one in found.items()}
        assert (states["fine"], states["quiet"]) == (SliceStatus.COMMITTED, SliceStatus.PLANNED)
        assert many.totals("fine").records == 30
        assert many.commit_checkpoints([a_checkpoint(1, job="quiet")]) == {}

    def test_what_was_written_may_be_written_again(self, many: Ledger) -> None:
        slices = [a_slice(1, job="fine"), a_slice(1, job="quiet")]
        checkpoints = [a_checkpoint(1, job="fine"), a_checkpoint(1, job="quiet")]
        assert many.plan_slices(slices) == many.plan_slices(slices) == {}
        assert many.commit_checkpoints(checkpoints) == many.commit_checkpoints(checkpoints) == {}
        assert many.totals("fine").records == 30

    def test_nothing_to_write_is_no_error(self, many: Ledger) -> None:
        assert many.plan_slices([]) == many.commit_checkpoints([]) == {}
        assert many.begin_runs([]) == ({}, {})
        assert many.progress_of([]) == {}

    @pytest.mark.guarantee(
        "G901",
        "Several runs can begin in one transaction. Each has the epoch and the lease of its own job, and a job that is "
        "refused doesn't affect the others.",
        promise="one-leader-and-one-run-write",
    )
    def test_runs_begin_together_each_under_its_own_epoch(self, many: Ledger) -> None:
        names = ("fine", "fenced", "no such job", "quiet")
        begun, refused = many.begin_runs([RunRequest(name, pid) for pid, name in enumerate(names, start=7)])
        assert {name: type(error) for name, error in refused.items()} == {"no such job": NotFound}
        assert {name: (row.epoch, row.version, row.pid) for name, row in begun.items()} == {
            "fine": (2, 1, 7),
            "fenced": (3, 1, 8),
            "quiet": (2, 1, 10),
        }
        for name, row in begun.items():
            before, present = many.runs(name)[-2:]
            assert (before.outcome, before.message) == ("superseded", f"run {row.epoch} took over")
            assert present == row
        untouched = many.runs("gap")
        assert len(untouched) == 1 and untouched[0].ended_ms is None
        refused = many.plan_slices([a_slice(1, job="fine", epoch=1), a_slice(1, job="quiet", epoch=2)])
        assert {name: type(error) for name, error in refused.items()} == {"fine": Fenced}

    @pytest.mark.guarantee("G901")
    def test_each_run_takes_over_the_version_of_the_slice_that_its_job_has_planned(self, many: Ledger) -> None:
        many.plan_slices([a_slice(1, job="fine"), a_slice(1, job="quiet"), a_slice(1, job="gap")])
        many.commit_checkpoints([a_checkpoint(1, job="gap")])
        for name in self.NAMES:
            many.submit_job(name, "", {"pipeline": name, "changed": 1})
        begun, _ = many.begin_runs([RunRequest("quiet", 1, present_version=True)])
        assert begun["quiet"].version == 2
        many.set_run_slots("quiet", begun["quiet"].epoch, 4)
        begun, refused = many.begin_runs([RunRequest(name, 1) for name in ("fine", "quiet", "gap")])
        assert refused == {}
        assert {name: row.version for name, row in begun.items()} == {"fine": 1, "quiet": 2, "gap": 2}

    def test_one_job_has_one_run_at_a_time(self, many: Ledger) -> None:
        with pytest.raises(ValueError, match="several rows of one job"):
            many.begin_runs([RunRequest("fine", 1), RunRequest("fine", 2)])
        assert many.job("fine").epoch == 1


class TestJobsOfAService:
    """Rows of several jobs that a control service writes in one transaction, each under the lease of its own job."""

    NAMES = ("fine", "fenced", "gap", "quiet")

    @pytest.fixture
    def many(self, running: Ledger) -> Ledger:
        for name in self.NAMES:
            running.submit_job(name, "", {"pipeline": name})
            running.begin_run(name, pid=1)
        running.begin_run("fenced", pid=2)
        return running

    @pytest.mark.guarantee(
        "G1070",
        "States, ends of runs, leases, and events of many jobs can be written in one transaction. A job that is refused "
        "doesn't affect the others.",
        promise="one-leader-and-one-run-write",
    )
    def test_jobs_move_together_each_under_its_own_lease(self, many: Ledger) -> None:
        leases = {name: lease.epoch for name, (lease, _) in many.claim_leases(self.NAMES, "a", 60_000).items()}
        moves = [
            JobMove("fine", JobState.STARTING, "again", lease=leases["fine"]),
            JobMove("fenced", JobState.STARTING, epoch=1),
            JobMove("no such job", JobState.STARTING),
            JobMove("quiet", JobState.DRAINED, lease=leases["quiet"]),
            JobMove("gap", JobState.FAILED, "too often", lease=leases["gap"] + 1),
        ]
        before = {name: many.job(name) for name in self.NAMES}
        moved, refused = many.move_jobs(moves)
        assert {name: type(error) for name, error in refused.items()} == {
            "fenced": Fenced,
            "no such job": NotFound,
            "quiet": Conflict,
            "gap": Fenced,
        }
        assert moved == {"fine": many.job("fine")}
        assert (moved["fine"].state, moved["fine"].message) == (JobState.STARTING, "again")
        assert all(many.job(name) == before[name] for name in ("fenced", "quiet", "gap"))
        assert many.move_jobs([]) == ({}, {}) and many.events() == []

    @pytest.mark.guarantee("G1070")
    def test_jobs_that_fail_together_each_have_their_event(self, many: Ledger) -> None:
        moved, refused = many.move_jobs([JobMove(name, JobState.FAILED, f"why {name}") for name in ("fine", "quiet")])
        assert refused == {} and {row.state for row in moved.values()} == {JobState.FAILED}
        assert [(one.kind, one.job, one.message) for one in many.events()] == [
            ("job_failed", "fine", "why fine"),
            ("job_failed", "quiet", "why quiet"),
        ]

    @pytest.mark.guarantee("G1070")
    def test_runs_end_together_each_under_its_own_lease(self, many: Ledger) -> None:
        leases = {name: lease.epoch for name, (lease, _) in many.claim_leases(["fine", "quiet"], "a", 60_000).items()}
        many.end_run("gap", 1, "failed", "it said why")
        ended, refused = many.end_each_run(
            [
                RunEnd("fine", 1, "died", "was killed", leases["fine"]),
                RunEnd("quiet", 1, "died", "was killed", leases["quiet"] + 1),
                RunEnd("gap", 1, "died", "was killed"),
                RunEnd("fenced", 7, "died"),
                RunEnd("no such job", 1, "died", lease=1),
            ]
        )
        assert {name: type(error) for name, error in refused.items()} == {
            "quiet": Fenced,
            "fenced": NotFound,
            "no such job": NotFound,
        }
        assert {name: (row.outcome, row.message) for name, row in ended.items()} == {
            "fine": ("died", "was killed"),
            "gap": ("failed", "it said why"),
        }
        assert ended == many.newest_runs(["fine", "gap", "no such job"])
        assert many.runs("quiet")[-1].ended_ms is None and many.end_each_run([]) == ({}, {})


class TestOldSlices:
    def test_they_go_from_the_oldest_on_a_few_at_a_time(self, running: Ledger) -> None:
        commit_slices(running, 1, 10)
        totals = running.totals("power")
        assert running.floor("power") == 0
        removed = []
        while gone := running.raise_floor("power", 1, 8, limit=3):
            removed.append((gone, running.floor("power")))
        assert removed == [(3, 4), (3, 7), (1, 8)]
        assert [row.number for row in running.slices("power", 1, 99)] == [8, 9, 10]
        assert [row.slice for row in running.checkpoints("power")] == [10, 9, 8]
        assert running.raise_floor("power", 1, 3, limit=3) == 0
        assert (running.totals("power"), running.slice_count("power")) == (totals, 10)
        running.plan_slice(a_slice(11))
        running.commit_checkpoint(a_checkpoint(11))

    def test_what_was_so_after_the_floor_is_known_and_nothing_before_it(self, running: Ledger) -> None:
        commit_slices(running, 1, 6)
        after, sums = running.checkpoint("power", 4), running.totals("power", 4)
        running.raise_floor("power", 1, 4, limit=9)
        assert (running.checkpoint("power", 4), running.totals("power", 4)) == (after, sums)
        for call in (running.checkpoint, running.totals):
            with pytest.raises(NotFound, match="was removed"):
                call("power", 3)
        assert running.first_slice_from("power", 6, {"turbines": {0: 0, 1: 0}}) == 5
        assert running.first_slice_from("power", 6, {"turbines": {0: 50, 1: 100}}) == 6
        assert running.version_changes("power", 6) == [(5, 1)]
        assert [running.first_slice_reaching("power", at_ms) for at_ms in (0, 4_000, 4_001)] == [4, 4, 5]
        assert [running.first_slice_closing("power", at_ms) for at_ms in (0, 3_900, 3_901)] == [4, 4, 5]

    def test_the_last_committed_slice_and_the_planned_one_stay_above_the_floor(self, running: Ledger) -> None:
        assert running.raise_floor("power", 1, 9, limit=9) == 0
        commit_slices(running, 1, 3)
        running.plan_slice(a_slice(4))
        assert running.raise_floor("power", 1, 9, limit=9) == 1
        assert (running.floor("power"), running.last_slice("power")) == (2, a_slice(4))

    def test_an_open_backfill_keeps_them_and_an_ended_one_does_not(self, running: Ledger) -> None:
        commit_slices(running, 1, 9)
        row = running.request_backfill(
            "power", 1, (0, None), {"per_minute": WindowRange(0, 60_000)}, 3, 90, {"turbines": 1}
        )
        assert running.raise_floor("power", 1, 8, limit=9) == 0
        running.move_backfill("power", row.generation, BackfillState.CANCELLED)
        assert running.raise_floor("power", 1, 8, limit=9) == 7
        assert running.backfill("power", row.generation).slice == 3

    def test_runs_go_with_their_events_unless_they_are_open_or_left_a_slice(self, running: Ledger) -> None:
        running.plan_slice(a_slice(1))
        running.begin_run("power", 1)
        running.commit_checkpoint(a_checkpoint(1, 2))
        for epoch in range(3, 7):
            running.begin_run("power", 1)
            running.record_event("run_failed", "Kafka does not answer", "power", epoch)
        running.record_event("stop_ordered", "a user ordered: stop job power", "power")
        running.submit_job("other", "", {"pipeline": "other"})
        running.record_event("run_failed", "Kafka does not answer", "other", 3)
        assert running.remove_runs("power", [1, 2, 3, 4, 6, 99]) == 2
        assert [run.epoch for run in running.runs("power")] == [1, 2, 5, 6]
        told = [(event.job, event.epoch) for event in running.events()]
        assert told == [("power", 5), ("power", 6), ("power", None), ("other", 3)]
        assert running.remove_runs("power", []) == 0
        assert running.begin_run("power", 1).epoch == 7
        with pytest.raises(NotFound, match="no job"):
            running.remove_runs("nobody", [1])

    def test_a_floor_that_was_worked_out_for_another_version_is_not_taken(self, running: Ledger) -> None:
        commit_slices(running, 1, 9)
        running.submit_job("power", "with larger windows", {"pipeline": "power", "windows": "larger"})
        assert running.raise_floor("power", 1, 8, limit=9) == 0
        assert running.raise_floor("power", 2, 8, limit=9) == 7
        with pytest.raises(NotFound, match="no job"):
            running.raise_floor("nobody", 1, 8, limit=9)

    def test_a_search_that_meets_slices_that_go_begins_again_above_them(
        self, running: Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commit_slices(running, 1, 6)
        running.raise_floor("power", 1, 4, limit=9)
        floor = running.floor
        for search, found in (
            (lambda: running.first_slice_from("power", 6, {"turbines": {0: 0, 1: 0}}), 5),
            (lambda: running.first_slice_closing("power", 0), 4),
        ):
            before = iter([0])  # the search begins before they go
            monkeypatch.setattr(running, "floor", lambda job, before=before: next(before, floor(job)))
            assert search() == found

    def test_a_search_among_slices_that_never_were_says_so(self, running: Ledger) -> None:
        with pytest.raises(NotFound, match="has no slice"):
            running.first_slice_from("power", 3, {})

    def test_other_jobs_keep_theirs(self, running: Ledger) -> None:
        running.submit_job("other", "", {})
        running.begin_run("other", pid=9)
        for number in (1, 2, 3):
            running.plan_slice(a_slice(number, job="other"))
            running.commit_checkpoint(a_checkpoint(number, job="other"))
        commit_slices(running, 1, 9)
        running.raise_floor("power", 1, 8, limit=9)
        assert len(running.slices("other", 1, 9)) == 3

    @pytest.mark.guarantee("G29")
    @pytest.mark.long
    def test_the_file_uses_freed_pages_again(self, tmp_path: Path) -> None:
        path = tmp_path / "l.sqlite"
        with closing(Ledger.open(f"sqlite:///{path}")) as ledger:
            ledger.submit_job("power", "", {})
            ledger.begin_run("power", pid=1)
            sizes = []
            for first in (1, 61, 121):
                commit_slices(ledger, first, first + 59)
                sizes.append(path.stat().st_size)
                ledger.raise_floor("power", 1, first + 57, limit=60)
        assert max(sizes) < 1.1 * sizes[0]


class TestEvents:
    def test_events_are_read_on_from_the_last_id(self, running: Ledger) -> None:
        written = [running.record_event("note", str(number), "power", 1, {"n": number}) for number in range(5)]
        written.append(running.record_event("stack", "no job"))
        assert running.events() == written
        assert running.events("power") == written[:5]
        assert running.events(after_id=written[1].id, limit=2) == written[2:4]
        assert running.events(after_id=written[-1].id) == []

    def test_the_last_event_of_a_kind_is_found(self, running: Ledger) -> None:
        assert running.last_event("power", "note") is None
        running.submit_job("other", "", {})
        written = [running.record_event("note", str(number), "power") for number in range(2)]
        running.record_event("other", "of another kind", "power")
        running.record_event("note", "of another job", "other")
        assert running.last_event("power", "note") == written[1]
        of_other = running.record_event("note", "of another", "other")
        assert running.last_events(["power", "other", "none"], "note") == {"power": written[1], "other": of_other}
        assert running.last_events([], "note") == {}

    @pytest.mark.guarantee("G1070")
    def test_several_events_are_recorded_in_order_or_none(self, running: Ledger) -> None:
        written = running.record_events([NewEvent("note", "one", "power", 1, {"n": 1}), NewEvent("stack", "two")])
        assert running.events() == written and [one.message for one in written] == ["one", "two"]
        with pytest.raises(Conflict):
            running.record_events([NewEvent("note", "three", "power"), NewEvent("note", "", "none")])
        assert running.events() == written and running.record_events([]) == []

    def test_a_follower_misses_nothing_while_threads_write(self, running: Ledger) -> None:
        """An event never becomes visible behind the follower's back, below an id that it has already read."""
        writers, each = 4, 40
        followed: list[EventRow] = []
        with ThreadPoolExecutor(writers) as pool:
            writes = [pool.submit(running.record_event, "note", str(number)) for number in range(writers * each)]
            while not all(write.done() for write in writes):
                followed += running.events(after_id=followed[-1].id if followed else 0)
        written = sorted((write.result() for write in writes), key=lambda event: event.id)
        followed += running.events(after_id=followed[-1].id if followed else 0, limit=1_000)
        assert followed == written

    def test_an_event_may_quote_a_broken_record(self, running: Ledger) -> None:
        running.record_event("note", "a\0b\ud800c Ærø", facts={"bytes": "a\0b\ud800c"})
        read = running.events()[0]
        assert (read.message, read.facts) == ("a\\0b\\ud800c Ærø", {"bytes": "a\0b\ud800c"})

    def test_an_event_of_an_unknown_job_is_refused(self, ledger: Ledger) -> None:
        with pytest.raises(Conflict):
            ledger.record_event("note", "", "none")


def test_any_sql_client_reads_slices_and_checkpoints(running: Ledger, ledger_url: str) -> None:
    """An outside program recomputes every result from these two tables, the stream and the pipeline."""
    commit_slices(running, 1, 1)
    running.plan_slice(a_slice(2))
    columns = "job, number, offsets, cut_time_ms, watermark_ms, epoch, status"
    slices = run_sql(ledger_url, f"SELECT {columns} FROM slices ORDER BY number")
    ((emitted,),) = run_sql(ledger_url, "SELECT emitted FROM checkpoints WHERE job='power' AND slice=1")
    assert tuple(slices[0]) == ("power", 1, '{"turbines":{"0":10,"1":20}}', 1_000, 900, 1, "committed")
    assert slices[1].status == "planned"
    assert json.loads(emitted) == {"per_minute": 60_000}


def test_versions_of_a_stream_stay_and_slices_say_by_which_they_go(running: Ledger) -> None:
    first = running.put_stream("turbines", {"stream": "turbines"}, base=0).document
    assert running.put_stream("turbines", {**first, "more": 1}, base=1).version == 2
    with pytest.raises(Conflict, match="has just got version 2 by another application"):
        running.put_stream("turbines", {**first, "more": 2}, base=1)
    assert running.put_stream("turbines", {**first, "more": 1}, base=1).version == 2, "an answer may be lost"
    assert running.stream_documents("turbines") == {1: first, 2: {**first, "more": 1}}
    assert running.stream_version("turbines") == 2
    running.set_run_streams("power", 1, {"turbines": 1})
    assert running.runs("power")[0].stream_versions == {"turbines": 1}
    running.plan_slice(a_slice(1, stream_versions={"turbines": 1}))
    assert running.slices("power", 1, 1)[0].stream_versions == {"turbines": 1}
    running.commit_checkpoint(a_checkpoint(1))
    second = running.begin_run("power", 2)
    with pytest.raises(Fenced):
        running.set_run_streams("power", 1, {"turbines": 2})
    running.set_run_streams("power", second.epoch, {"turbines": 2})
    running.plan_slice(a_slice(2, second.epoch))
    running.commit_checkpoint(a_checkpoint(2, second.epoch))
    assert [tuple(one) for one in running.compiled_changes("power", 2)] == [
        (1, 1, {"turbines": 1}),
        (2, 1, {"turbines": 2}),
    ]
    with pytest.raises(NotFound):
        running.stream_documents("none")


@pytest.mark.parametrize(
    "broken",
    [
        "INSERT INTO slices SELECT job, 3, epoch, version, offsets_first, offsets, 0, NULL, rule, reached, silence_ms, kind,"
        " status, 0, checksums, stream_versions, sessions, lookup_versions FROM slices WHERE number = 2",
        "UPDATE slices SET status = 'perhaps'",
        "UPDATE jobs SET state = 'perhaps'",
        "UPDATE jobs SET epoch = -1",
        "DELETE FROM slices WHERE number = 1",
        "UPDATE slices SET epoch = 77",
        "INSERT INTO runs VALUES ('power', 2, 1, 1, 0, NULL, NULL, '', 0, '{}')",
        "UPDATE runs SET ended_ms = 5",
    ],
)
def test_the_schema_itself_refuses(running: Ledger, ledger_url: str, broken: str) -> None:
    """Two planned slices, an unknown state, a lost slice, an unknown run and two open runs are refused from any writer."""
    commit_slices(running, 1, 1)
    running.plan_slice(a_slice(2))
    with pytest.raises(Conflict):
        run_sql(ledger_url, broken)


def test_a_number_that_no_column_holds_is_refused(running: Ledger) -> None:
    with pytest.raises(Conflict):
        running.plan_slice(a_slice(1, cut_time_ms=10**30))


def _half_do(database: Database, then: str | Exception) -> None:
    with database.writing("stumble half way") as connection:
        connection.execute(sa.text("UPDATE jobs SET message = 'half done'"))
        if isinstance(then, Exception):
            raise then
        connection.execute(sa.text(then))


def test_an_error_in_a_unit_of_work_takes_all_of_it_back(running: Ledger, database: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        _half_do(database, ZeroDivisionError())
    assert running.job("power").message == ""


@pytest.mark.parametrize(
    "url", ["", "ledger.sqlite", "mysql://h/d", "sqlite://", "sqlite:///:memory:", "postgresql+asyncpg://u:secret@h/d"]
)
def test_a_url_that_names_no_ledger_is_refused(url: str) -> None:
    with pytest.raises(InvalidSettings, match="sqlite:///FILE") as caught:
        Ledger.open(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["sqlite:///{tmp_path}/no/such/directory/l.sqlite", "postgresql+psycopg://u:secret@127.0.0.1:1/d"]
)
def test_a_database_that_does_not_answer_is_unavailable(url: str, tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailable, match="Could not read the schema's revision") as caught:
        Ledger.open(url.format(tmp_path=tmp_path))
    assert "secret" not in str(caught.value)


def test_a_ledger_that_another_process_holds_too_long_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.ledger.database.BUSY_TIMEOUT_S", 0.1)
    url = f"sqlite:///{tmp_path / 'l.sqlite'}"
    one, other = Ledger.open(url), Ledger.open(url)
    with Database(url).writing("hold it"):
        assert other.jobs() == [], "readers go on while a writer has not committed"
        with pytest.raises(LedgerUnavailable, match="database is locked"):
            other.submit_job("power", "", {})
    other.submit_job("power", "", {})
    one.close()
    other.close()


@pytest.mark.parametrize("ledger_url", ["postgresql"], indirect=True)
def test_a_lost_connection_is_unavailable_and_the_next_call_makes_a_new_one(
    running: Ledger, database: Database
) -> None:
    with pytest.raises(LedgerUnavailable):
        _half_do(database, "SELECT pg_terminate_backend(pg_backend_pid())")
    with database.reading("look again") as connection:
        assert connection.execute(sa.text("SELECT message FROM jobs")).scalars().all() == [""]
    assert running.job("power").message == ""


def test_a_connection_that_is_in_use_while_the_others_are_closed_is_closed_when_it_is_given_back(
    database: Database,
) -> None:
    with database.reading("look") as connection:
        raw = connection.connection.dbapi_connection
        assert raw is not None
        database.close()
        assert connection.execute(sa.text("SELECT 1")).scalar() == 1
    with pytest.raises((sqlite3.ProgrammingError, psycopg.OperationalError), match="closed"):
        raw.cursor()


def test_sqlite_keeps_a_rollback_journal_and_syncs_in_full(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'l.sqlite'}")
    with database.writing("ask") as connection:
        asked = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")
        }
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    database.close()
    assert asked == {"journal_mode": "truncate", "synchronous": 2}


class TestWhatAnAuditAsks:
    def test_totals_up_to_a_slice(self, running: Ledger) -> None:
        commit_slices(running, 1, 3)
        assert running.totals("power", 2) == Totals(60, 56, {"late": 2, "decode": 2}, {"per_minute": 10}, {})
        assert running.totals("power", 0) == Totals(0, 0, {}, {}, {})

    def test_where_versions_change(self, running: Ledger) -> None:
        for number, version in enumerate((1, 1, 2, 2, 1), start=1):
            if version == 2 and number == 3:
                running.submit_job("power", "pipeline: power # two", {"pipeline": "power", "two": 2})
            running.plan_slice(a_slice(number, version=version))
            running.commit_checkpoint(a_checkpoint(number, version=version))
        assert running.version_changes("power", 5) == [(1, 1), (3, 2), (5, 1)]
        assert running.version_changes("power", 4) == [(1, 1), (3, 2)]
        assert running.version_changes("nobody", 4) == []

    def test_the_first_slice_that_closes(self, running: Ledger) -> None:
        for number, closes_ms in enumerate((None, 500, 500, 900), start=1):
            running.plan_slice(a_slice(number))
            running.commit_checkpoint(a_checkpoint(number, closes_ms=closes_ms))
        assert [running.first_slice_closing("power", at_ms) for at_ms in (1, 500, 501, 901)] == [2, 2, 4, None]

    def test_the_first_slice_that_the_log_still_holds(self, running: Ledger) -> None:
        """A slice holds 10 records of partition 0 and 20 of partition 1."""
        commit_slices(running, 1, 5)
        for starts, first in (
            ({0: 0, 1: 0}, 1),
            ({0: 1, 1: 0}, 2),
            ({0: 10, 1: 21}, 3),
            ({0: 50, 1: 100}, 6),
            ({0: 99, 1: 0}, 6),
        ):
            assert running.first_slice_from("power", 5, {"turbines": starts}) == first
        joined = a_slice(6)
        joined.offsets["turbines"][2] = 7  # a partition that was added: it begins at 0
        running.plan_slice(joined)
        running.commit_checkpoint(a_checkpoint(6))
        assert running.first_slice_from("power", 6, {"turbines": {0: 50, 1: 100, 2: 0}}) == 6
        assert running.first_slice_from("power", 6, {"turbines": {0: 50, 1: 100, 2: 1}}) == 7


class TestRegisteredSchemas:
    """The schema that a registry gave for a number."""

    def test_the_first_answer_is_kept_for_ever(self, ledger: Ledger) -> None:
        assert ledger.kept_schema("avro", 7) is None
        kept = ledger.keep_schema("avro", 7, '{"text":"\\u0000"}')
        assert (kept.kind, kept.number, kept.document) == ("avro", 7, '{"text":"\\u0000"}')
        assert ledger.keep_schema("avro", 7, "another") == kept == ledger.kept_schema("avro", 7)
        assert ledger.kept_schema("protobuf", 7) is None
        assert ledger.keep_schema("avro", 2**32 - 1, "large").number == 2**32 - 1

    @pytest.mark.guarantee("G799")
    def test_the_first_answer_for_a_slice_counts_and_later_slices_are_asked_again(self, running: Ledger) -> None:
        record = partial(running.record_schema, "power", "turbines", schema=("avro", 8), unknown_max=9)
        running.plan_slice(a_slice(1))
        assert not record(slice_number=1, is_known=False)
        assert not record(slice_number=1, is_known=True), "the registry got it in between"
        assert running.unknown_schemas("power", "turbines", 1) == ({("avro", 8)}, False)
        assert running.schema_uses("power", "turbines") == {}
        running.commit_checkpoint(a_checkpoint(1))
        with pytest.raises(Fenced, match="Slice 1 of job power is committed"):
            record(slice_number=1, is_known=True)
        running.plan_slice(a_slice(2))
        assert record(slice_number=2, is_known=True)
        assert record(slice_number=2, is_known=False), "it is used already"
        assert running.schema_uses("power", "turbines") == {("avro", 8): 2}
        assert running.schema_uses("power", "others") == {}

    def test_a_slice_takes_a_bounded_number_of_unknown_schemas_from_each_stream(self, running: Ledger) -> None:
        record = partial(running.record_schema, "power", slice_number=1, unknown_max=3)
        running.plan_slice(a_slice(1))
        assert record("turbines", schema=("avro", 1), is_known=True)
        for number in (20, 21, 21, 22, 23):
            assert not record("turbines", schema=("avro", number), is_known=False)
        assert running.unknown_schemas("power", "turbines", 1) == ({("avro", 20), ("avro", 21), ("avro", 22)}, True)
        assert not record("turbines", schema=("avro", 2), is_known=True)
        assert record("turbines", schema=("avro", 1), is_known=True)
        assert record("sites", schema=("avro", 2), is_known=True)
        running.commit_checkpoint(a_checkpoint(1))
        running.plan_slice(a_slice(2))
        assert running.record_schema("power", "turbines", 2, ("avro", 2), is_known=True, unknown_max=3)
        assert not running.record_schema("power", "turbines", 2, ("avro", 20), is_known=False, unknown_max=3)
        assert running.unknown_schemas("power", "turbines", 1) == (set(), False), "a committed slice needs none"

    def test_of_many_at_once_one_is_first(self, ledger: Ledger) -> None:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda at: ledger.keep_schema("avro", 1, f"{at}"), range(8)))
        assert len({one.document for one in found}) == 1


def test_the_documents_and_the_results_of_all_jobs_are_read_at_once(ledger: Ledger) -> None:
    for name in ("power", "heat"):
        ledger.submit_job(name, "", {"pipeline": name})
    ledger.submit_job("heat", "", {"pipeline": "heat", "late": "drop"}, [StageSink("stream", "minutes", "w")])
    current = ledger.current_versions_of_jobs()
    assert {job: (row.version, row.document) for job, row in current.items()} == {
        "heat": (2, {"pipeline": "heat", "late": "drop"}),
        "power": (1, {"pipeline": "power"}),
    }
    assert (ledger.owner_of_sink("stream", "minutes"), ledger.owner_of_sink("stream", "hours")) == ("heat", None)
    assert ledger.last_result_offsets() == {}


def test_facts_of_rewinds_are_read_for_many_jobs_at_once(running: Ledger) -> None:
    ledger = running
    commit_slices(ledger, 1, 4)
    ledger.plan_slice(a_slice(5))
    ledger.submit_job("heat", "", {"pipeline": "heat"})
    ledger.begin_run("heat", pid=1)
    ledger.plan_slice(a_slice(1, job="heat"))
    ledger.commit_checkpoint(a_checkpoint(1, job="heat", committed_ms=1_500))
    ledger.submit_job("empty", "", {"pipeline": "empty"})
    names = ["power", "heat", "empty"]
    assert ledger.floors(names) == {"power": 0, "heat": 0, "empty": 0}
    assert ledger.first_slices_reaching({"power": 2_500, "heat": 1_001, "empty": 0}) == {"power": 3}
    starts = ledger.replay_starts({"power": 3, "heat": 2, "empty": 1})
    assert starts == {
        "power": (a_slice(3).offsets_first, a_checkpoint(2).latest_log_ms),
        "heat": (None, a_checkpoint(1).latest_log_ms),
        "empty": (None, None),
    }
    # planned at 1,000 ms a slice, committed at 1,200: the first one took the least time
    assert ledger.highest_rates({"power": 4, "heat": 1, "empty": 1}, 20) == {"power": 30 / 0.2, "heat": 30 / 0.5}
    assert ledger.highest_rates({"power": 4}, 2) == {"power": 30 / 0.6}
    ledger.raise_floor("power", 1, 2, limit=9)
    assert ledger.floors(names)["power"] == ledger.floor("power") == 2
    assert (ledger.first_slices_reaching({}), ledger.replay_starts({}), ledger.highest_rates({}, 20)) == ({}, {}, {})
    assert [row.name for row in ledger.streams(["nowhere"])] == []
    assert list(ledger.current_versions_of_jobs(["heat", "nowhere"])) == ["heat"]
