"""Servers that ask for TLS and a login: each client gets in, says what was refused, and a job runs on all of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from strandline.core.errors import StrandlineError
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.log.admin import KafkaAdmin
from strandline.log.index import LogIndex
from strandline.log.range_reader import RangeReader
from strandline.log.reader import LogReader, OffsetRange
from strandline.log.transactions import fence_producer
from strandline.results.elasticsearch_client import request
from tests.support.secured import Secured

TOPIC = "secured-records"


def use(secured: Secured, monkeypatch: pytest.MonkeyPatch, **changed: str | None) -> Settings:
    """Have this process use the servers."""
    for name, value in (secured.environment | {f"STRANDLINE_{key}": value for key, value in changed.items()}).items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    return Settings.read()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_every_client_of_kafka_logs_in(secured, mechanism, monkeypatch):
    settings = use(secured, monkeypatch, KAFKA_SASL_MECHANISM=mechanism)
    bootstrap, topic = settings.kafka_bootstrap, f"{TOPIC}-{mechanism.lower()}"
    admin = KafkaAdmin(bootstrap, timeout_s=20, changes_topics=True)
    assert admin.create(topic, 1, 1, {"message.timestamp.type": "LogAppendTime"})
    producer = fence_producer(bootstrap, f"slot-{mechanism}", topic)
    producer.begin_transaction()
    producer.produce(topic, b"one")
    producer.commit_transaction(20)
    asked = OffsetRange(topic, 0, 0, 1)
    with closing(LogReader(bootstrap, 20)) as reader:
        assert [message.value() for messages in reader.read(asked) for message in messages] == [b"one"]
    with closing(RangeReader(bootstrap, 20)) as columns:
        assert [value for chunk in columns.read([asked]) for value in chunk.values] == [b"one"]
    with LogIndex(bootstrap) as index:
        assert index.checksums(topic, {0: 0}).keys() == {0}


def in_kafka(settings: Settings) -> None:
    KafkaAdmin(settings.kafka_bootstrap, timeout_s=4).check()


def in_the_range_reader(settings: Settings) -> None:
    with closing(RangeReader(settings.kafka_bootstrap, 4)) as reader:
        list(reader.read([OffsetRange("any", 0, 0, 1)]))


def in_the_index(settings: Settings) -> None:
    request(settings.elasticsearch_url, "GET", "/_cluster/health", timeout_s=10)


def in_the_ledger(settings: Settings) -> None:
    Ledger.migrate(settings.ledger_url)


@pytest.mark.parametrize(
    ("ask", "changed", "said"),
    [
        (in_kafka, {"KAFKA_PASSWORD_FILE": None, "KAFKA_PASSWORD": "wrong-one"}, "refused the login.*KAFKA_PASSWORD"),
        (in_kafka, {"KAFKA_CA_FILE": None}, "STRANDLINE_KAFKA_CA_FILE"),
        (
            in_the_range_reader,
            {"KAFKA_PASSWORD_FILE": None, "KAFKA_PASSWORD": "wrong-one"},
            "refused the login.*KAFKA_PASSWORD",
        ),
        (in_the_range_reader, {"KAFKA_CA_FILE": None}, "STRANDLINE_KAFKA_CA_FILE"),
        (
            in_the_index,
            {"ELASTICSEARCH_PASSWORD_FILE": None, "ELASTICSEARCH_PASSWORD": "wrong-one"},
            "401.*STRANDLINE_ELASTICSEARCH_USERNAME",
        ),
        (
            in_the_index,
            {
                "ELASTICSEARCH_USERNAME": None,
                "ELASTICSEARCH_PASSWORD_FILE": None,
                "ELASTICSEARCH_API_KEY": "d3Jvbmctb25lOndyb25nLW9uZQ==",
            },
            "401.*STRANDLINE_ELASTICSEARCH_API_KEY",
        ),
        (in_the_index, {"ELASTICSEARCH_CA_FILE": None}, "STRANDLINE_ELASTICSEARCH_CA_FILE"),
        (
            in_the_ledger,
            {"LEDGER_PASSWORD_FILE": None, "LEDGER_PASSWORD": "wrong-one"},
            "authentication failed.*STRANDLINE_LEDGER_PASSWORD",
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_refused_is_said_in_one_sentence_that_names_the_setting(
    secured, ask: Callable[[Settings], None], changed, said, monkeypatch
):
    settings = use(secured, monkeypatch, **changed)
    with pytest.raises(StrandlineError, match=said) as refused:
        ask(settings)
    assert "wrong-one" not in str(refused.value) and "\n" not in str(refused.value)
    assert not any(secret.text in str(refused.value) for secret in secured.planted)
