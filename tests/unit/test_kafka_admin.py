"""What is where in the log is asked again when a broker has been restarted: that ends no run."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from strandline.core.errors import LogUnavailable
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
