"""A log that was cut off or recreated is never read as if it were the same, for any time of the change."""

from __future__ import annotations

import pytest

from strandline.core.errors import Conflict, NotFound
from strandline.ledger.states import Desired, SliceKind
from strandline.processing.slices import continuity as continuity_module
from strandline.processing.slices.continuity import DOUBT_MS, LogContinuity
from tests.unit.test_planner import Job


@pytest.fixture
def job(tmp_path):
    """A job that has read three records of each partition."""
    job = Job(tmp_path)
    for partition in (0, 1):
        for second in range(3):
            job.log.add(partition, 100 + second, 1_000 * second)
    job.commit(job.next(200))
    yield job
    job.ledger.close()


def cut_off(job, partition, end):
    del job.log.records[partition][end:]


def look_until_it_ends(job):
    """Look once a second, until the planner has had its doubts for long enough."""
    slices = job.ledger.slice_count("j")
    until_ms = job.now_ms + DOUBT_MS + 2_000
    while job.now_ms < until_ms:
        job.now_ms += 1_000
        assert job.planner.next_slice() is None
    pytest.fail(f"nothing happened; there were {slices} slices, and are {job.ledger.slice_count('j')}")


def start(job):
    """Do the checks of a start, on a clock that a waiting start advances."""

    def clock():
        job.now_ms += 1_000
        return job.now_ms

    LogContinuity("j", "s", "first", job.log, clock).require(job.ledger.last_slice("j"))


@pytest.fixture(autouse=True)
def waits_cost_nothing(monkeypatch):
    monkeypatch.setattr(continuity_module.time, "sleep", lambda _: None)


def test_each_slice_records_the_checksum_of_its_last_record_in_each_partition(job):
    of_first = job.ledger.last_slice("j").checksums["s"]
    assert of_first == {partition: hash((102, 2_000)) for partition in (0, 1)}
    job.log.add(1, 300, 4_000)
    row = job.commit(job.next(400))
    assert row.checksums == {"s": of_first | {1: hash((300, 4_000))}}
    assert job.ledger.last_slice("j").checksums == row.checksums
    job.ledger.set_desired("j", Desired.DRAINED)
    assert [(one.kind, one.checksums) for one in job.commit_all(500)] == [(SliceKind.DRAIN, row.checksums)]
    start(job)


@pytest.mark.guarantee(
    "G35",
    "If the log was truncated below the read or planned offsets, or if the topic was deleted or recreated, the job "
    "fails before it emits results of other records. The error names the partition, the offsets, and the remedy. The "
    "same holds for the topic of a stream of results.",
    promise="a-damaged-log-or-ledger-stops-the-job",
)
def test_a_log_that_ends_before_what_was_read_stops_the_job(job):
    cut_off(job, 1, 2)
    job.log.add(0, 300, 4_000)
    with pytest.raises(Conflict) as raised:
        look_until_it_ends(job)
    assert str(raised.value) == (
        "stream s, partition 1 ends at offset 2, but slices of job j go up to offset 3: the log was cut off there, by a power "
        "cut or by the election of a broker that lacked records. Restore the log and start the job again (strandline job "
        "start j). Or submit the pipeline under another name, with other names for its emissions, to compute from the "
        "records that the log contains now."
    )
    with pytest.raises(Conflict, match=r"partition 1 ends at offset 2, but slices of job j go up to offset 3"):
        start(job)


def test_a_partition_that_is_not_there_any_more_stops_the_job(job):
    del job.log.records[1]
    with pytest.raises(Conflict, match=r"partition 1 is not there, but slices of job j go up to offset 3"):
        look_until_it_ends(job)


def test_an_answer_of_a_broker_that_is_behind_holds_the_planner_up_and_no_more(job):
    kept = job.log.records[1]
    job.log.records[1] = kept[:1]
    job.log.add(0, 300, 4_000)
    assert job.next(DOUBT_MS) is None
    job.log.records[1] = kept
    job.next(DOUBT_MS + 1_000)
    assert job.ledger.last_slice("j").offsets == {"s": {0: 4, 1: 3}}


def test_doubts_that_pass_are_not_added_up(job):
    kept = job.log.records[1]
    for _ in range(3):
        job.log.records[1] = kept[:1]
        assert job.next(job.now_ms + DOUBT_MS - 1_000) is None
        job.log.records[1] = kept
        assert job.next(job.now_ms + 1_000) is None
    job.log.add(1, 60_000, 4_000)
    assert job.next(job.now_ms + 1_000).offsets == {"s": {0: 3, 1: 4}}


@pytest.mark.guarantee("G35")
def test_new_records_do_not_hide_that_the_log_was_cut_off(job):
    """The log was cut off and is longer than before by the time of the next look."""
    cut_off(job, 1, 1)
    for second in range(5):
        job.log.add(1, 300 + second, 4_000)
    with pytest.raises(
        Conflict, match=r"partition 1 holds another record at offset 2 than when slice 1 of job j was cut"
    ):
        job.next(400)
    with pytest.raises(
        Conflict, match=r"partition 1 holds another record at offset 2 than when slice 1 of job j was cut"
    ):
        start(job)
    assert job.ledger.slice_count("j") == 1


@pytest.mark.guarantee("G35")
def test_a_planned_slice_that_reaches_past_the_end_of_the_log_stops_the_job(job):
    job.log.add(0, 300, 4_000)
    assert job.next(400).offsets == {"s": {0: 4, 1: 3}}
    cut_off(job, 0, 3)
    with pytest.raises(Conflict, match=r"partition 0 ends at offset 3, but slices of job j go up to offset 4"):
        start(job)
    job.log.add(0, 500, 5_000)
    with pytest.raises(
        Conflict, match=r"partition 0 holds another record at offset 3 than when slice 2 of job j was cut"
    ):
        start(job)


def test_a_log_that_is_cut_off_while_the_slice_is_cut_stops_the_job(job, monkeypatch):
    """The end was seen, and the record before it is gone when it is looked for."""
    job.log.add(0, 300, 4_000)
    ends = job.log.ends("s")
    monkeypatch.setattr(job.log, "ends", lambda stream: ends)
    cut_off(job, 0, 3)
    with pytest.raises(Conflict, match=r"partition 0 does not hold offset 3 any more, up to which slices of job j go"):
        look_until_it_ends(job)


@pytest.mark.guarantee("G35")
@pytest.mark.parametrize("records", [0, 2, 3, 9])
def test_a_topic_that_was_made_anew_stops_the_job_however_much_it_holds(job, records):
    job.log.id = "second"
    for partition in (0, 1):
        job.log.records[partition] = [(300, 4_000)] * records
    with pytest.raises(
        Conflict, match=r"stream s is another topic.*topic id second, known is first.*Or register the stream"
    ):
        start(job)
    job.log.add(0, 400, 5_000)
    with pytest.raises(Conflict, match=r"stream s is another topic"):
        job.next(500)


def test_a_topic_that_was_made_anew_before_anything_was_read_stops_the_job(tmp_path):
    job = Job(tmp_path)
    job.log.id = "second"
    job.log.add(0, 100, 1_000)
    with pytest.raises(Conflict, match=r"stream s is another topic.*job j has read"):
        job.next(200)
    job.ledger.close()


def test_a_topic_that_was_deleted_stops_the_job(job, monkeypatch):
    def no_topic(stream):
        raise NotFound("Kafka has no topic s")

    job.log.id = None
    monkeypatch.setattr(job.log, "ends", no_topic)
    for look in (lambda: look_until_it_ends(job), lambda: start(job)):
        with pytest.raises(
            Conflict,
            match=r"the topic of stream s, which job j reads, was deleted\. To use its name again, run strandline apply",
        ):
            look()


@pytest.mark.parametrize("asked", ["topic_id", "ends", "checksums"])
def test_a_broker_that_does_not_know_the_topic_for_a_moment_holds_the_job_up_and_no_more(job, monkeypatch, asked):
    """Whatever it is asked; and doubts that pass are not added up."""
    job.log.add(0, 300, 4_000)
    answer, forgetful_until_ms = getattr(job.log, asked), 0

    def forgetful(*arguments):
        if job.now_ms < forgetful_until_ms:
            raise NotFound("Kafka has no topic s")
        return answer(*arguments)

    monkeypatch.setattr(job.log, asked, forgetful)
    for number in (2, 3):
        job.log.add(1, 60_000, 4_000)
        forgetful_until_ms = job.now_ms + DOUBT_MS - 2_000
        start(job)
        forgetful_until_ms = job.now_ms + DOUBT_MS - 2_000
        row = job.next(job.now_ms + DOUBT_MS)
        assert (row.number, row.offsets["s"][1]) == (number, number + 2)
        job.commit(row)


def test_a_broker_that_does_not_know_the_topic_while_silence_is_counted_ends_nothing(job, monkeypatch):
    def no_topic(stream):
        raise NotFound("Kafka has no topic s")

    with monkeypatch.context() as forgetful:
        forgetful.setattr(job.log, "ends", no_topic)
        job.planner.count_silence()
    job.log.add(0, 300, 4_000)
    assert job.next(400).offsets == {"s": {0: 4, 1: 3}}


def test_a_start_waits_for_a_partition_that_a_broker_does_not_know_yet(job):
    """The partition was added, and is in the last slice without a record. The log is needed there from offset 0 on."""
    job.log.add(0, 300, 4_000)
    job.log.records[2] = []
    assert job.commit(job.next(400)).offsets == {"s": {0: 4, 1: 3, 2: 0}}
    del job.log.records[2]
    with pytest.raises(Conflict, match=r"partition 2 is not there, but slices of job j go up to offset 0"):
        start(job)


def test_what_retention_took_after_it_was_read_is_no_conflict(job):
    job.log.first = {1: 3}
    job.log.add(1, 300, 4_000)
    assert job.commit(job.next(400)).offsets == {"s": {0: 3, 1: 4}}
    job.log.first = {0: 3, 1: 4}
    start(job)


def test_after_a_slice_without_checksums_the_next_one_has_them(job):
    """The slice with which a reset job begins has none."""
    with job.ledger._database.writing("forget") as connection:
        connection.exec_driver_sql("UPDATE slices SET checksums = '{}'")
    start(job)
    job.log.add(0, 300, 4_000)
    assert job.next(400).checksums == {"s": {0: hash((300, 4_000)), 1: hash((102, 2_000))}}
