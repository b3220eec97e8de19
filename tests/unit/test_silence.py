"""Times that count as silence, and others."""

import pytest

from strandline.core.errors import LogUnavailable
from strandline.processing.slices.silence import GAP_MAX_MS, LOOK_MAX_MS, SeenEnds, SilenceMeter


class Lab:
    """Two partitions, a clock, and a meter that looks every second."""

    def __init__(self):
        self.now_ms = 0
        self.ends, self.written = {0: 5, 1: 7}, {0: 5, 1: 7}
        self.accepted_in = {0: 1, 1: 1}
        self.closed = set()
        self.answer_takes_ms = 0
        self.meter = SilenceMeter(lambda: self.now_ms)

    def ask(self):
        began_ms = self.now_ms
        self.now_ms += self.answer_takes_ms
        return SeenEnds(dict(self.ends), dict(self.written), began_ms, self.now_ms)

    def look(self, after_ms=1_000):
        self.now_ms += after_ms
        ends, silence_ms = self.meter.look(self.ask, self.accepted_in, lambda: self.closed)
        assert ends == self.ends
        return silence_ms

    def grow(self, partition, *, accepted=True):
        """A record comes, and the slice that holds it is committed before the next look."""
        self.ends[partition] += 1
        self.written[partition] += 1
        self.accepted_in[partition] += accepted


@pytest.fixture
def lab():
    return Lab()


def test_silence_is_counted_between_looks(lab):
    assert [lab.look() for _ in range(3)] == [{0: 0, 1: 0}, {0: 1_000, 1: 1_000}, {0: 2_000, 1: 2_000}]


def test_an_accepted_record_ends_the_count(lab):
    lab.look()
    lab.look()
    lab.grow(0)
    assert [lab.look(), lab.look()] == [{0: 0, 1: 2_000}, {0: 1_000, 1: 3_000}]


@pytest.mark.guarantee("G24")
def test_an_open_transaction_is_no_silence(lab):
    lab.look()
    lab.look()
    lab.written[0] += 3  # behind it nothing can be read
    assert [lab.look(), lab.look()] == [{0: 0, 1: 2_000}, {0: 0, 1: 3_000}]
    lab.written[0] += 1  # it is over
    lab.ends[0] = lab.written[0]
    assert [lab.look(), lab.look()] == [{0: 0, 1: 4_000}, {0: 1_000, 1: 5_000}]


def test_a_transaction_that_is_open_when_a_count_begins_is_no_silence(lab):
    """The transaction can have hung for hours: at the first look of a run, and after an accepted record ended the
    count."""
    lab.written[0] += 3
    lab.look()
    lab.ends[0] = lab.written[0]
    assert [lab.look(), lab.look()] == [{0: 0, 1: 1_000}, {0: 1_000, 1: 2_000}]
    lab.grow(0)
    lab.written[0] += 3
    lab.look()
    lab.ends[0] = lab.written[0]
    assert [lab.look(), lab.look()] == [{0: 0, 1: 4_000}, {0: 1_000, 1: 5_000}]


def test_rejected_records_do_not_end_the_count(lab):
    lab.look()
    for second in range(1, 6):
        lab.grow(0, accepted=False)
        assert lab.look() == {0: 1_000 * second, 1: 1_000 * second}


def test_rejected_records_of_one_transaction_after_the_other_do_not_end_the_count(lab):
    lab.look()
    for second in range(1, 6):
        lab.ends[0] = lab.written[0]
        lab.written[0] += 3  # the next transaction is open
        assert lab.look()[0] == (0 if second == 1 else 1_000 * (second - 1)), "until its records can be read"
    lab.ends[0] = lab.written[0]
    assert lab.look() == {0: 6_000, 1: 6_000}


def test_a_partition_that_lost_records_begins_again(lab):
    lab.look()
    lab.look()
    lab.ends[0] = lab.written[0] = 3
    assert [lab.look(), lab.look()] == [{0: 0, 1: 2_000}, {0: 1_000, 1: 3_000}]


@pytest.mark.guarantee("G757")
def test_a_partition_that_cannot_be_written_is_not_silent(lab):
    lab.look()
    lab.look()
    lab.closed = {0}
    assert [lab.look(), lab.look()] == [{0: 0, 1: 2_000}, {0: 0, 1: 3_000}]
    lab.closed = set()
    assert [lab.look(), lab.look()] == [{0: 0, 1: 4_000}, {0: 1_000, 1: 5_000}]


def test_if_the_replicas_cannot_be_read_there_is_no_count(lab):
    lab.look()
    lab.look()

    def fail():
        raise LogUnavailable("no metadata")

    with pytest.raises(LogUnavailable):
        lab.meter.look(lab.ask, lab.accepted_in, fail)
    assert [lab.look(), lab.look()] == [{0: 0, 1: 0}, {0: 1_000, 1: 1_000}]


@pytest.mark.guarantee(
    "G24",
    "Outages of Kafka, records that are resent after them, open transactions, unread records, and pauses of the "
    "runner don't count as silence. No wall clock moves event time.",
    promise="no-record-is-late-without-cause",
)
def test_an_outage_is_no_silence_and_neither_is_the_time_until_what_was_held_up_is_sent_again(lab):
    lab.look()
    assert [lab.look() for _ in range(3)][-1] == {0: 3_000, 1: 3_000}

    def fail():
        raise LogUnavailable("away")

    with pytest.raises(LogUnavailable):
        lab.meter.look(fail, lab.accepted_in)
    assert [lab.look(60_000), lab.look()] == [{0: 0, 1: 0}, {0: 1_000, 1: 1_000}]
    lab.answer_takes_ms = LOOK_MAX_MS + 1  # the brokers come back while they are asked
    assert lab.look() == {0: 0, 1: 0}
    lab.answer_takes_ms = LOOK_MAX_MS
    assert lab.look() == {0: 1_000, 1: 1_000}, "the time of a look is not counted"


def test_of_a_long_time_between_two_looks_only_a_part_is_known_to_be_silence(lab):
    lab.look()
    assert lab.look(3_600_000) == {0: GAP_MAX_MS, 1: GAP_MAX_MS}


def test_a_new_run_begins_anew(lab):
    """The one before may have ended for an outage, or another may have been between them."""
    lab.look()
    lab.look()
    lab.meter = SilenceMeter(lambda: lab.now_ms)
    assert [lab.look(), lab.look()] == [{0: 0, 1: 0}, {0: 1_000, 1: 1_000}]


def test_a_partition_that_was_added_begins_at_zero(lab):
    lab.look()
    lab.ends[2] = lab.written[2] = 0
    assert [lab.look(), lab.look()] == [{0: 1_000, 1: 1_000, 2: 0}, {0: 2_000, 1: 2_000, 2: 1_000}]
