"""Questions about the log are repeated after a restart of a broker, so it ends no run."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

from strandline.core.errors import LogUnavailable, NotFound
from strandline.log.admin import KafkaAdmin


@dataclass
class Found:
    offset: int


class StaleClient:
    """Knows the broker as it was before its restart."""

    def list_offsets(self, wanted: Any, **_: object) -> Any:
        answers: dict[Any, Future[Found]] = {place: Future() for place in wanted}
        for answer in answers.values():
            answer.set_exception(KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH)))
        return answers


class FreshClient(StaleClient):
    def list_offsets(self, wanted: Any, **_: object) -> Any:
        answers: dict[Any, Future[Found]] = {place: Future() for place in wanted}
        for answer in answers.values():
            answer.set_result(Found(7))
        return answers


class Clients:
    """Makes clients; the first ones are stale."""

    def __init__(self, stale: int) -> None:
        self.stale = stale

    def __call__(self, _: Any) -> Any:
        self.stale -= 1
        return StaleClient() if self.stale >= 0 else FreshClient()


def ends(stale: int) -> dict[int, int]:
    return KafkaAdmin("nowhere", timeout_s=0.5, make_client=Clients(stale)).ends("readings", [0, 1])


def test_offsets_are_asked_for_again_after_a_broker_was_restarted() -> None:
    assert ends(stale=0) == {0: 7, 1: 7}
    assert ends(stale=2) == {0: 7, 1: 7}


def test_the_waiting_ends_with_the_timeout() -> None:
    with pytest.raises(LogUnavailable, match="the offsets of topic readings could not be read"):
        ends(stale=1_000)


@pytest.mark.parametrize("timeout_s", [0.001, 400])
def test_a_timeout_outside_the_range_of_the_client_library_is_accepted(timeout_s: float) -> None:
    assert KafkaAdmin("127.0.0.1:1", timeout_s=timeout_s).timeout_s == timeout_s


def test_who_asks_may_wait_less_than_others_of_the_same_connection() -> None:
    admin = KafkaAdmin("nowhere", timeout_s=600, make_client=Clients(stale=1_000))
    with pytest.raises(LogUnavailable, match="the offsets of topic readings could not be read"):
        admin.starts("readings", [0, 1], timeout_s=0.3)


class NotYetClient(FreshClient):
    """A broker that knows the topic, and not yet a partition that was added."""

    def __init__(self, is_known: bool) -> None:
        self.is_known = is_known

    def list_offsets(self, wanted: Any, **_: object) -> Any:
        answers: dict[Any, Future[Found]] = {place: Future() for place in wanted}
        for answer in answers.values():
            answer.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        return answers

    def describe_topics(self, topics: Any, **_: object) -> Any:
        answer: Future[Any] = Future()
        if self.is_known:
            answer.set_result(
                Described("id", [SimpleNamespace(id=one, replicas=[1], isr=[1], leader=1) for one in range(2)])
            )
        else:
            answer.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        return {"readings": answer}


@dataclass
class Described:
    topic_id: str
    partitions: list[Any]


def test_a_partition_that_a_broker_does_not_know_yet_is_asked_for_again() -> None:
    """The partition was just added. A permanent failure, as without a topic, would end the job."""
    clients: list[Any] = [NotYetClient(True), NotYetClient(True), FreshClient()]
    admin = KafkaAdmin("nowhere", timeout_s=5, make_client=lambda _: clients.pop(0))
    assert admin.ends("readings", [0, 1]) == {0: 7, 1: 7}
    admin = KafkaAdmin("nowhere", timeout_s=0.5, make_client=lambda _: NotYetClient(True))
    with pytest.raises(LogUnavailable, match="a broker does not know all its partitions yet"):
        admin.ends("readings", [0, 1])


def test_a_topic_that_is_gone_is_not_waited_for() -> None:
    admin = KafkaAdmin("nowhere", timeout_s=600, make_client=lambda _: NotYetClient(False))
    with pytest.raises(NotFound, match="has no topic readings"):
        admin.ends("readings", [0, 1])


class SilentClient(FreshClient):
    """A client whose request or answer was lost for one partition: librdkafka doesn't report this as an error."""

    def list_offsets(self, wanted: Any, **_: object) -> Any:
        answers: dict[Any, Future[Found]] = {place: Future() for place in wanted}
        for place, answer in answers.items():
            answer.set_result(Found(OFFSET_INVALID if place.partition == 1 else 7))
        return answers


@pytest.mark.guarantee(
    "G152",
    "If a response of Kafka about offsets, topics, or settings is lost, the dependent step waits, or fails with a "
    "message. A missing response is never an answer.",
    promise="a-damaged-log-or-ledger-stops-the-job",
)
def test_an_offset_that_nobody_told_is_none() -> None:
    clients: list[Any] = [SilentClient(), SilentClient(), FreshClient()]
    assert KafkaAdmin("nowhere", timeout_s=5, make_client=lambda _: clients.pop(0)).ends("readings", [0, 1]) == {
        0: 7,
        1: 7,
    }
    silent = KafkaAdmin("nowhere", timeout_s=0.5, make_client=lambda _: SilentClient())
    with pytest.raises(LogUnavailable, match=r"no answer for partitions \[1\]"):
        silent.ends("readings", [0, 1])
    assert not silent.do_leaders_answer("readings", [0, 1])


class LeaderlessClient(FreshClient):
    """So librdkafka says it, of a topic that was created a moment ago."""

    def list_offsets(self, wanted: Any, **_: object) -> Any:
        answers: dict[Any, Future[Found]] = {place: Future() for place in wanted}
        for answer in answers.values():
            answer.set_exception(KafkaException(KafkaError(KafkaError._NOENT, "Failed to query partition leaders")))
        return answers

    def poll(self, _: float) -> int:
        return 0


def test_a_topic_without_leaders_has_none_that_answers() -> None:
    admin = KafkaAdmin("nowhere", timeout_s=0.5, make_client=lambda _: LeaderlessClient())
    assert not admin.do_leaders_answer("readings", [0, 1])


class OneIsGone(FreshClient):
    """One of several topics was deleted, and the leader of another is not known."""

    def list_offsets(self, wanted: Any, **_: object) -> Any:
        answers: dict[Any, Future[Found]] = {place: Future() for place in wanted}
        codes = {"gone": KafkaError.UNKNOWN_TOPIC_OR_PART, "led by none": KafkaError.NOT_LEADER_FOR_PARTITION}
        for place, answer in answers.items():
            if place.topic in codes:
                answer.set_exception(KafkaException(KafkaError(codes[place.topic])))
            else:
                answer.set_result(Found(7))
        return answers

    def describe_topics(self, topics: Any, **_: object) -> Any:
        answer: Future[Any] = Future()
        answer.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        return {"gone": answer}


def test_a_topic_that_fails_leaves_the_answers_of_the_others() -> None:
    made: list[Any] = []

    def make(_: Any) -> Any:
        made.append(OneIsGone())
        return made[-1]

    admin = KafkaAdmin("nowhere", timeout_s=600, patience_s=0, make_client=make)
    found = admin.ends_each({"a": [0, 1], "gone": [0], "led by none": [0], "b": [0], "empty": []})
    assert (found["a"], found["b"], found["empty"]) == ({0: 7, 1: 7}, {0: 7}, {})
    assert isinstance(found["gone"], NotFound)
    assert isinstance(found["led by none"], LogUnavailable)
    assert len(made) == 1, "without patience, no question is repeated"
