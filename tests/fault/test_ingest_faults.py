"""No acknowledged record is lost or written twice if a process between a sender and the log is killed.

Small versions of the tests of `make chaos-ingest`, once or twice each: real processes and a checker. The checker
knows only what was sent, what was acknowledged and the records of the topic.
"""

from __future__ import annotations

import contextlib

import pytest

from tests.support.faults import scenarios
from tests.support.faults.kafka_proxy import Api, cut_request, drop_answer, hold_request
from tests.support.faults.lab import Lab

pytestmark = pytest.mark.timeout(600)


@pytest.mark.guarantee(
    "G51",
    "A gateway that is killed at any instant loses no acknowledged record and stores none twice. It acknowledges "
    "again within 5 s of its start.",
    promise="acknowledged-records-are-stored",
)
def test_a_gateway_killed_under_load(each_lab: Lab):
    assert scenarios.kill_gateway(each_lab, 2).failures == []


@pytest.mark.guarantee("G58")
@pytest.mark.long
def test_what_senders_repeat_is_counted_apart(lab: Lab):
    outcome = scenarios.kill_gateway(lab, 3, resends=True)
    assert outcome.failures == []
    assert outcome.verdict.unknown_missing == 0


@pytest.mark.guarantee(
    "G58",
    "A sender that disconnects before its answer, or in the middle of its batch, causes no loss and no duplicate. The "
    "gateway never reports a stored record as refused.",
    promise="records-are-stored-once-and-unchanged",
)
def test_senders_that_leave_before_their_answer(each_lab: Lab):
    assert scenarios.cut_senders(each_lab, 0 if each_lab.kind.name == "udp" else 50).failures == []


@pytest.mark.long
def test_a_gateway_frozen_under_load(lab: Lab):
    assert scenarios.freeze_gateway(lab, 2).failures == []


@pytest.mark.long
@pytest.mark.guarantee(
    "G52",
    "While Kafka is down, a sender over HTTP or TCP has its answer within 3 s. Within 5 s of Kafka's return, records "
    "flow again.",
    promise="acknowledged-records-are-stored",
)
def test_kafka_stopped_for_some_seconds(each_lab: Lab):
    assert scenarios.stop_kafka(each_lab, 2).failures == []


@pytest.mark.guarantee("G52")
@pytest.mark.long
def test_kafka_killed_under_load(lab: Lab):
    assert scenarios.kill_kafka(lab, 2).failures == []


@pytest.mark.long
def test_kafka_frozen(lab: Lab):
    assert scenarios.freeze_kafka(lab, 6).failures == []


@pytest.mark.guarantee("G52")
@pytest.mark.long
def test_the_network_to_kafka_cut(lab: Lab):
    assert scenarios.cut_network(lab, 4).failures == []


@pytest.mark.guarantee(
    "G53",
    "A lost answer, a cut request, and a request that arrives half a minute late, after a restart, lead to no loss "
    "and no duplicate.",
    promise="records-are-stored-once-and-unchanged",
)
def test_the_answer_to_a_produce_request_lost(lab: Lab):
    assert scenarios.spoil_produce(lab, lambda: drop_answer(Api.PRODUCE), 4, what="Produce answer lost").failures == []


@pytest.mark.guarantee("G53")
@pytest.mark.long
def test_a_produce_request_cut_in_the_middle(lab: Lab):
    assert scenarios.spoil_produce(lab, lambda: cut_request(Api.PRODUCE), 10, what="Produce cut").failures == []


@pytest.mark.guarantee("G53")
def test_a_produce_request_delivered_after_the_gateways_restart(lab: Lab):
    assert scenarios.hold_produce(lab, 1, seconds=4).failures == []


@pytest.mark.guarantee(
    "G54",
    "A record that can't be read back is never acknowledged.",
    promise="acknowledged-records-are-stored",
)
def test_nothing_is_acknowledged_that_a_broker_does_not_show(lab: Lab):
    assert scenarios.blind_read_back(lab, 1).failures == []


@pytest.mark.guarantee("G54")
@pytest.mark.long
def test_nothing_is_acknowledged_while_the_read_back_waits(lab: Lab):
    assert scenarios.slow_read_back(lab, 2).failures == []


@pytest.mark.guarantee(
    "G55",
    "At ten times the load that Kafka accepts, a gateway refuses records, loses and repeats none, and stays below 512 "
    "MB.",
    promise="acknowledged-records-are-stored",
)
def test_ten_times_more_than_kafka_takes(lab: Lab):
    outcome = scenarios.overload(lab, seconds=3)
    assert outcome.failures == []


@pytest.mark.long
@pytest.mark.guarantee(
    "G57",
    "A full disk under Kafka, and the crash of the leader among three brokers, lose no acknowledged record.",
    promise="acknowledged-records-are-stored",
)
def test_the_disk_of_kafka_full(disk, tmp_path):
    with contextlib.closing(Lab(tmp_path, storage=disk / "log")) as lab:
        assert scenarios.fill_disk(lab, disk, 1).failures == []


@pytest.mark.guarantee("G57")
@pytest.mark.long
def test_the_leader_of_three_brokers_killed(tmp_path):
    with contextlib.closing(Lab(tmp_path, brokers=3)) as lab:
        assert scenarios.kill_leader(lab, 2).failures == []


@pytest.mark.guarantee("G51")
@pytest.mark.long
def test_a_spooling_gateway_killed_under_load(spool_lab: Lab):
    assert scenarios.kill_gateway(spool_lab, 2).failures == []


@pytest.mark.long
@pytest.mark.guarantee(
    "G56",
    "Records acknowledged from the spool reach the log once and in order, also if the gateway or Kafka is killed, or "
    "a response of Kafka is lost.",
    promise="records-are-stored-once-and-unchanged",
)
def test_a_spooling_gateway_killed_while_kafka_is_away(spool_lab: Lab):
    """The records that it acknowledged from the spool are finally in the log, once and in order."""
    assert scenarios.kill_gateway_without_kafka(spool_lab, 1).failures == []


@pytest.mark.guarantee("G56")
@pytest.mark.long
def test_what_a_spooling_gateway_sends_again_when_its_first_attempt_was_only_late(spool_lab: Lab):
    assert scenarios.hold_produce(spool_lab, 2, seconds=4).failures == []


@pytest.mark.parametrize(
    "make_rule",
    [
        pytest.param(drop_answer, id="lost"),
        pytest.param(lambda api: hold_request(api, 3), id="held", marks=pytest.mark.long),
    ],
)
def test_the_commit_of_a_spooling_gateway(spool_lab: Lab, make_rule):
    outcome = scenarios.spoil_produce(spool_lab, lambda: make_rule(Api.END_TXN), 3, what="commit")
    assert outcome.failures == []
