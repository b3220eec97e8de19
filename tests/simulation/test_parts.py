"""The parts of the simulated world that are quick because they remember something: each against its plain meaning."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from strandline.ledger.states import EventTimeRule
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from tests.simulation.event_time import late_without_cause
from tests.simulation.log import Log, Record
from tests.simulation.run import overstated_silences
from tests.simulation.topic import State, Topic
from tests.simulation.versions import MINUTE, SHORTS, document_of, first_version, new_version, pipeline_of_document
from tests.simulation.windows import windows_holding
from tests.support.ledgers import a_slice


@pytest.mark.parametrize("shape", [MINUTE, *SHORTS], ids=str)
def test_an_event_is_in_every_window_that_spans_it(shape):
    starts = range(-shape.size_ms // shape.every_ms * shape.every_ms, 200_000, shape.every_ms)
    edges = [start + by_ms for start in range(0, 100_000, 5_000) for by_ms in (-1, 0, 1) if start + by_ms >= 0]
    for event_ms in edges:
        spanning = [(one, one + shape.size_ms) for one in starts if one <= event_ms < one + shape.size_ms]
        assert windows_holding(shape, event_ms) == spanning


@pytest.mark.parametrize("seed", range(20))
def test_an_offset_at_a_log_time_is_that_of_the_first_record_that_reaches_it(seed):
    """Also where the brokers' clock was set back, and where the log was cut off."""
    chance, log = random.Random(seed), Log(2)
    for number in range(200):
        partition = chance.randrange(2)
        log.append(partition, Record(number, chance.randint(0, 50) + number % 100, 0, "a", 0, False))
        if chance.random() < 0.05:
            log.cut(partition, chance.randrange(len(log.records[partition])))
        ends = {one: chance.randint(0, len(records) + 2) for one, records in enumerate(log.records)}
        log_time_ms = chance.randint(0, 160)
        assert log.offsets_at("", log_time_ms, ends) == {
            one: min([*(at for at, r in enumerate(log.records[one]) if r.log_ms >= log_time_ms), end][0], end)
            for one, end in ends.items()
        }
        assert log.newest_log_time("") == max((r.log_ms for records in log.records for r in records), default=0)


@pytest.mark.parametrize("seed", range(20))
def test_a_topic_is_settled_up_to_its_first_open_transaction(seed):
    chance, topic = random.Random(seed), Topic()
    holds = {name: topic.take_over(name) for name in "abc"}
    for number in range(200):
        name = chance.choice("abc")
        match chance.choice(["append", "append", "append", "commit", "take over"]):
            case "append":
                topic.append(holds[name], number, "", 0)
            case "commit":
                topic.commit(holds[name])
            case _:
                holds[name] = topic.take_over(name)
        still_open = [at for at, (_, _, transaction) in enumerate(topic.entries) if transaction.state is State.OPEN]
        assert topic.settled_end() == min([*still_open, len(topic.entries)])


def test_a_stored_pipeline_that_was_read_before_is_the_one_that_reading_gives():
    chance = random.Random(0)
    versions = [first_version(chance)]
    for _ in range(50):
        versions.append(new_version(chance, versions[-1]))
    for version in versions * 2:
        assert pipeline_of_document(document_of(version)) == PipelineSpec.from_document(document_of(version))


RULE = EventTimeRule(delay_ms=1_000, idle_timeout_ms=5_000, max_ahead_ms=60_000)


class Past:
    """Slices over a log whose brokers' clock has jumped, each with its watermark and how far event time had come before it."""

    def __init__(self, rule=RULE):
        self.rule, self.slices = rule, []
        self.log = Log(2)
        self.log.has_jumped = True
        self.load = SimpleNamespace(is_real_time=True)
        self.versions = [SimpleNamespace(delay_ms=1_000)]

    def send(self, partition, number, event_ms):
        """The records were sent in the order of their numbers."""
        self.log.append(partition, Record(number, event_ms, event_ms, "a", 0, False))

    def cut(self, watermark_ms, reached, silence_ms=None):
        """A slice with all that was sent since the one before."""
        self.slices.append(
            a_slice(
                len(self.slices) + 1,
                offsets_first=self.slices[-1].offsets if self.slices else {"s": {}},
                offsets={"s": {partition: len(records) for partition, records in enumerate(self.log.records)}},
                watermark_ms=watermark_ms,
                reached={"s": reached} if reached else {},
                silence_ms={"s": silence_ms or {}},
                rule=self.rule,
            )
        )

    @property
    def late_numbers(self):
        findings = late_without_cause(self, self.slices)
        return [int(finding.split("number=")[1].split(",")[0]) for finding in findings]


def read_an_added_partition_behind_the_other(past):
    """Records 2 and 3 of partition 1 are read when the other one's later record has moved the watermark past them."""
    past.send(0, 4, 30_000)
    past.cut(9_000, {0: 10_000})
    past.send(1, 2, 20_000)
    past.send(1, 5, 35_000)
    past.cut(29_000, {0: 30_000})
    past.send(1, 3, 21_000)
    past.cut(29_000, {0: 30_000, 1: 35_000})


def test_that_its_partition_was_added_is_no_cause_for_a_late_record_though_clocks_jump():
    past = Past()
    past.send(0, 1, 10_000)
    past.cut(None, {})
    read_an_added_partition_behind_the_other(past)
    assert past.late_numbers == [2, 3]


def test_where_the_newest_event_counts_a_clock_that_jumps_is_a_cause():
    past = Past(EventTimeRule(1_000, 5_000, 60_000, "newest"))
    past.send(0, 1, 10_000)
    past.cut(None, {})
    read_an_added_partition_behind_the_other(past)
    assert past.late_numbers == []


@pytest.mark.parametrize("before_ms", [(), (10_000,)], ids=["at once", "by a shorter delay"])
def test_that_the_first_accepted_records_came_before_is_a_cause_in_later_slices_too(before_ms):
    past = Past()
    past.send(0, 4, 30_000)
    past.cut(None, {})
    for watermark_ms in before_ms:
        past.cut(watermark_ms, {0: 30_000})
    past.send(1, 2, 20_000)
    past.send(1, 5, 35_000)
    past.cut(29_000, {0: 30_000})
    past.send(1, 3, 21_000)
    past.cut(29_000, {0: 30_000, 1: 35_000})
    assert past.late_numbers == []


@pytest.mark.parametrize(("number", "late"), [(2, []), (4, [3])], ids=["sent before", "sent later"])
def test_a_record_from_the_future_is_a_cause_and_one_that_was_sent_later_is_none(number, late):
    past = Past()
    past.send(0, 1, 10_000)
    past.cut(None, {})
    past.send(0, number, 90_000)
    past.cut(9_000, {0: 10_000})
    past.send(1, 3, 20_000)
    past.cut(89_000, {0: 90_000})
    assert past.late_numbers == late


@pytest.mark.parametrize(("others_ms", "late"), [(11_000, []), (90_000, [4])])
def test_a_record_from_the_future_leads_all_that_are_idle(others_ms, late):
    past = Past()
    past.send(0, 1, 10_000)
    past.send(0, 2, 90_000)
    if others_ms == 90_000:  # without the one from the future, both partitions came that far, too
        past.send(0, 6, 90_000)
    past.send(1, 3 if others_ms < 90_000 else 5, others_ms)
    past.cut(None, {})
    past.cut(89_000, {0: 90_000, 1: others_ms}, {0: 5_000, 1: 5_000})
    past.send(1, 4, 20_000)
    past.cut(89_000, {0: 90_000, 1: others_ms})
    assert past.late_numbers == late


def test_a_record_from_the_future_is_no_cause_where_the_watermark_had_passed_without_it():
    """The late record's partition was idle when the record was read, and the other one had a later record too."""
    past = Past()
    past.send(0, 1, 10_000)
    past.send(1, 2, 11_000)
    past.cut(None, {})
    past.send(0, 3, 90_000)
    past.send(0, 5, 30_000)
    past.cut(10_000, {0: 10_000, 1: 11_000}, {1: 5_000})
    past.send(1, 4, 20_000)
    past.cut(89_000, {0: 90_000, 1: 11_000})
    assert past.late_numbers == [4]


def test_a_watermark_that_nothing_led_to_is_no_cause():
    past = Past()
    past.send(0, 1, 10_000)
    past.send(1, 2, 11_000)
    past.cut(None, {})
    past.send(1, 3, 20_000)
    past.cut(89_000, {0: 10_000, 1: 11_000})
    assert past.late_numbers == [3]


@pytest.mark.parametrize(("cut", "found"), [(None, [0, 1]), (({0}, 1), [1]), (({2}, 1), [0, 1])])
def test_what_was_cut_off_and_filled_again_may_look_silent(cut, found):
    world = SimpleNamespace(log=Log(3), cut=cut)
    world.log.countable_ms = [50, 1_000, 2_000]
    planned = a_slice(2, silence_ms={"s": {0: 2_000, 1: 2_000, 2: 2_000}})
    assert [int(finding.split(" in ")[1][0]) for finding in overstated_silences(world, planned)] == found
