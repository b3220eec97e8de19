"""The control service's own look at Kafka and Elasticsearch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from strandline.core.errors import IndexUnavailable
from strandline.core.settings import Settings
from strandline.log.admin import KafkaAdmin
from strandline.processing.pipelines.stages import Emit
from strandline.results import elasticsearch_client
from strandline.results.elasticsearch_client import RequestRefused
from strandline.services.supervision.external_services import RESULT_VALID_S, ExternalServices, unavailable_store
from tests.support.messages import RegistryServer


class ToldClient:
    """Double of the client of Kafka's admin.

    `partitions` of one topic, each (leader, replicas, replicas in step).
    """

    def __init__(self, *partitions: tuple[int, int, int]) -> None:
        self.asked = 0
        self.partitions = {
            number: SimpleNamespace(leader=leader, replicas=[0] * replicas, isrs=[0] * in_step)
            for number, (leader, replicas, in_step) in enumerate(partitions)
        }

    @property
    def admin(self) -> KafkaAdmin:
        return KafkaAdmin("nowhere", timeout_s=1.0, make_client=lambda _: self)  # type: ignore[arg-type,return-value]

    def poll(self, timeout: float) -> int:
        return 0

    def list_topics(self, timeout: float) -> SimpleNamespace:
        self.asked += 1
        topic = SimpleNamespace(topic="readings", partitions=self.partitions)
        return SimpleNamespace(topics={"readings": topic})


def answers(monkeypatch: pytest.MonkeyPatch, client: ToldClient, health: str | Exception = "green") -> bool:
    def request(*_: object, **__: object) -> dict[str, str]:
        if isinstance(health, Exception):
            raise health
        return {"status": health}

    monkeypatch.setattr(elasticsearch_client, "request", request)
    return ExternalServices(client.admin, "http://nowhere").are_up()


@pytest.mark.parametrize(
    ("partition", "is_writable"),
    [
        ((1, 1, 1), True),
        ((-1, 1, 1), False),
        ((1, 3, 2), True),
        ((1, 3, 1), False),
        ((1, 2, 1), True),
        ((1, 1, 0), False),
    ],
    ids=str,
)
def test_kafka_answers_when_every_partition_can_be_written(
    monkeypatch: pytest.MonkeyPatch, partition: tuple[int, int, int], is_writable: bool
) -> None:
    assert answers(monkeypatch, ToldClient((1, 1, 1), partition)) is is_writable


@pytest.mark.parametrize(
    ("health", "does_answer"),
    [
        ("yellow", True),
        ("red", False),
        (IndexUnavailable("no answer"), False),
        (RequestRefused("not for you", 403, "security_exception"), True),
    ],
    ids=str,
)
def test_elasticsearch_answers_unless_it_is_red_or_silent(
    monkeypatch: pytest.MonkeyPatch, health: str | Exception, does_answer: bool
) -> None:
    assert answers(monkeypatch, ToldClient((1, 1, 1)), health) is does_answer


def test_the_store_that_is_away_is_named_where_the_pipeline_emits_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(elasticsearch_client, "is_writable", lambda *_: False)
    there, away = f"sqlite:///{tmp_path}/results.sqlite", "postgresql+psycopg://user@127.0.0.1:1/results"

    def found(kind: str, sql_sink_url: str | None) -> str | None:
        emits = [SimpleNamespace(emits=(Emit(kind, "minutes"),))]
        return unavailable_store(SimpleNamespace(all_stages=emits), Settings(sql_sink_url=sql_sink_url))  # type: ignore[arg-type]

    assert found("elasticsearch", None) == "Elasticsearch"
    assert found("sql", away) == "the database of STRANDLINE_SQL_SINK_URL"
    assert [found("sql", there), found("sql", None), found("stream", away)] == [None] * 3


def test_many_who_ask_cost_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was found counts for a short time only."""
    monkeypatch.setattr(elasticsearch_client, "request", lambda *_, **__: {"status": "green"})
    client, now_s = ToldClient((1, 1, 1)), [100.0]
    present = ExternalServices(client.admin, "http://nowhere", clock_s=lambda: now_s[0])
    assert [present.are_up() for _ in range(10)] == [True] * 10
    assert client.asked == 1
    client.partitions[0].leader = -1
    now_s[0] += RESULT_VALID_S
    assert not present.are_up()
    assert client.asked == 2


def test_a_kafka_that_can_not_be_asked_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ToldClient((1, 1, 1))

    def list_topics(timeout: float) -> SimpleNamespace:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    monkeypatch.setattr(client, "list_topics", list_topics)
    assert not answers(monkeypatch, client)


@pytest.mark.guarantee("G281")
def test_a_schema_registry_that_is_away_is_an_outage_and_one_that_refuses_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(elasticsearch_client, "request", lambda *_, **__: {"status": "green"})
    registry = RegistryServer()

    def is_there() -> bool:
        return ExternalServices(ToldClient((1, 1, 1)).admin, "http://nowhere", registry.url).are_up()

    assert is_there()  # it says 404
    registry.is_away = True
    assert not is_there()
    registry.close()
    assert not is_there()
