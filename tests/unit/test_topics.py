"""Topics from which users choose one for a new stream: their list, and the preview of documents over their newest records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from strandline.core.errors import LogUnavailable, NotFound
from strandline.ledger.ledger import Ledger
from strandline.log.answers import Answers
from strandline.log.kafka_status import LogRange, NewestRecords, Sample, TopicSummary
from tests.support.control import BOTH, Api, Log

BASE_MS = 1_764_000_000_000
YAML = {"Content-Type": "application/yaml"}


class MeterLog(Log):
    """A topic `meters` with records of two partitions, whose log times alternate."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[bytes | None] = [
            json.dumps({"meter": f"m{at % 2}", "ts": BASE_MS + 20_000 * at, "kwh": 1.0 + at}).encode()
            for at in range(12)
        ]
        self.ranges["meters"] = LogRange({0: 4, 1: 0}, {0: 10, 1: 6})
        self.refused: set[str] = set()

    def summaries(self, topics: Any) -> Answers[TopicSummary]:
        refused = LogUnavailable("Kafka refused the settings of the topic")
        return {name: refused if name in self.refused else one for name, one in super().summaries(topics).items()}

    def sample(self, topic: str, count: int) -> Sample:
        return Sample([one for one in self.records if one], 2, self.retention_ms(topic))

    def newest_records(self, topic: str, records_max: int, *_: Any, **__: Any) -> NewestRecords:
        """Return all even records, then all odd ones."""
        order = [*range(0, 12, 2), *range(1, 12, 2)]
        return NewestRecords(
            [at % 2 for at in order],
            [at // 2 for at in order],
            [BASE_MS + 20_000 * at + 500 for at in order],
            [self.records[at] for at in order],
            [None] * 12,
        )


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    made = Api(ledger)
    made.log = MeterLog()
    vars(made._dependencies)["log"] = made.log
    yield made
    ledger.close()


def names(answer: Any) -> list[str]:
    return [one["topic"] for one in answer.json()["topics"]]


def test_the_list_contains_no_internal_topic_and_states_why_a_topic_cannot_be_a_stream(api: Api) -> None:
    assert api.ask("POST", "/v1/documents", content=BOTH, headers=YAML).status_code == 200
    one = LogRange({0: 0}, {0: 3})
    api.log.ranges |= {name: one for name in ("__consumer_offsets", "power.dead-letter", "x.dead-letter", "Invoices")}
    answer = api.ask("GET", "/v1/topics")
    assert names(answer) == ["Invoices", "meters", "turbines", "x.dead-letter"]
    invoices, meters, turbines, _ = answer.json()["topics"]
    assert "is not a name" in invoices["problem"]
    assert (meters["is_stream"], meters["partitions"], meters["retention_ms"]) == (False, 2, 604_800_000)
    assert meters["problem"] is None
    assert turbines["is_stream"] is True

    api.log.config = api.log.config | {"cleanup.policy": "compact"}
    _, meters, *_ = api.ask("GET", "/v1/topics").json()["topics"]
    assert "cleanup.policy=compact" in meters["problem"]


def test_a_topic_that_kafka_does_not_describe_leaves_the_others_in_the_list(api: Api) -> None:
    api.log.refused = {"meters"}
    meters, turbines = api.ask("GET", "/v1/topics").json()["topics"]
    assert (meters["partitions"], meters["problem"]) == (None, "Kafka refused the settings of the topic")
    assert turbines["partitions"] == 2
    api.log.ranges.clear()
    assert api.ask("GET", "/v1/topics").status_code == 503


def test_topics_are_searched_and_returned_in_pages(api: Api) -> None:
    api.log.ranges |= {f"plant-{at:03d}": LogRange({0: 0}, {0: 1}) for at in range(250)}
    first = api.ask("GET", "/v1/topics?search=PLANT&limit=100")
    assert (len(names(first)), first.json()["matches"]) == (100, 250)
    second = api.ask("GET", first.json()["next"])
    third = api.ask("GET", second.json()["next"])
    assert names(first) + names(second) + names(third) == [f"plant-{at:03d}" for at in range(250)]
    assert third.json()["next"] is None
    assert api.ask("GET", "/v1/topics?limit=501").status_code == 422


def test_the_proposal_for_a_topic_contains_a_pipeline_and_keeps_its_partitions_without_a_key(api: Api) -> None:
    proposal = api.ask("GET", "/v1/topics/meters/proposal").json()
    stream, pipeline = yaml.safe_load_all(proposal["documents"])
    assert stream == proposal["document"]
    assert (stream["stream"], stream["partitions"], stream["retention"]) == ("meters", 2, "1w")
    assert "key" not in stream, "the producers of the topic choose the partitions"
    assert pipeline["input"] == {"stream": "meters"}
    assert api.ask("POST", "/v1/pipelines/check", content=proposal["documents"], headers=YAML).json()["valid"]


def test_the_preview_of_a_topic_decodes_its_newest_records_in_the_order_of_their_log_times(api: Api) -> None:
    documents = api.ask("GET", "/v1/topics/meters/proposal").json()["documents"]
    api.log.records = [*api.log.records[:11], b"no record"]
    seen = api.ask("POST", "/v1/topics/meters/preview", content=documents, headers=YAML).json()
    assert [row["kwh"] for row in seen["rows"]] == [float(1 + at) for at in range(11)]
    assert (seen["records"], seen["accepted"], seen["rejected"]) == (12, 11, {"decode": 1})
    assert "not JSON" in seen["reasons"][0]
    assert sum(one["n"] for one in seen["results"]) == 11
    assert api.ledger.streams() == [], "nothing is registered"


def test_a_tombstone_of_the_topic_does_not_end_the_preview(api: Api) -> None:
    documents = api.ask("GET", "/v1/topics/meters/proposal").json()["documents"]
    api.log.records = [None, *api.log.records[1:]]
    seen = api.ask("POST", "/v1/topics/meters/preview", content=documents, headers=YAML)
    assert (seen.status_code, seen.json()["accepted"]) == (200, 11)


def test_a_topic_that_does_not_exist_is_reported(api: Api) -> None:
    def gone(*_: Any, **__: Any) -> NewestRecords:
        raise NotFound("Kafka has no topic meters")

    documents = api.ask("GET", "/v1/topics/meters/proposal").json()["documents"]
    api.log.newest_records = gone
    answer = api.ask("POST", "/v1/topics/meters/preview", content=documents, headers=YAML)
    assert (answer.status_code, answer.json()["detail"]) == (404, "Kafka has no topic meters")
