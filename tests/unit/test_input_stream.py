"""A start finds a stream that is not what the job has read. Real ledger; Kafka's settings are made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import Conflict
from strandline.core.settings import Settings
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.processing.backfill.process import Backfill
from strandline.processing.pipelines.job_run import JobRun
from strandline.processing.pipelines.stored import load_pipeline
from strandline.processing.run import preparation
from strandline.processing.slices.input_stream import require_same_stream
from strandline.processing.slices.rewind import RUN_BEGINS, RewindPlan
from tests.support.control import PIPELINE, STREAM, Api

READ = StreamSpec.from_document(
    {
        "stream": "turbines",
        "schema": {"turbine": "string", "ts": {"type": "timestamp", "unit": "ms"}, "power": "double"},
        "mqtt": {"topics": ["farm/+/+"], "fields": {"turbine": 1}},
    }
)


class Topic:
    """Double of the log's index: a topic with these settings."""

    def __init__(self, policy: str = "delete", stamp: str = "LogAppendTime") -> None:
        self._settings = {"cleanup.policy": policy, "message.timestamp.type": stamp, "retention.ms": "-1"}

    def settings(self, stream: str) -> dict[str, str]:
        assert stream == "turbines"
        return self._settings

    def topic_id(self, stream: str) -> str:
        return "id-1"

    def starts(self, stream: str) -> dict[int, int]:
        return {0: 0, 1: 0}


def ledger_url(directory: Path) -> str:
    return f"sqlite:///{directory / 'ledger.sqlite'}"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(ledger_url(tmp_path))
    assert Api(opened).outcomes(f"{STREAM}---\n{PIPELINE}") == ["created", "created"]
    yield opened
    opened.close()


def start(ledger: Ledger, stream: StreamSpec = READ, topic: Topic | None = None) -> None:
    index: Any = topic or Topic()
    require_same_stream(ledger, index, "power", stream)


def changed(**parts: Any) -> StreamSpec:
    return StreamSpec.from_document({**READ.as_document(), **parts})


@pytest.mark.parametrize(
    "stream",
    [
        changed(retention="30d"),
        changed(key="turbine"),
        changed(durability="spool"),
        changed(mqtt={"topics": ["park/+/+"], "fields": {"turbine": 1}}),
        changed(schema={"power": "double", "ts": {"type": "timestamp", "unit": "ms"}, "turbine": "string"}),
    ],
)
def test_what_decodes_the_same_starts(ledger: Ledger, stream: StreamSpec) -> None:
    start(ledger)
    start(ledger, stream)


def test_what_decodes_otherwise_starts_too_because_each_slice_says_by_what_it_is_decoded(ledger: Ledger) -> None:
    start(ledger)
    start(ledger, changed(schema=READ.as_document()["schema"] | {"wind": "double?"}))  # type: ignore[operator]
    assert ledger.input_document("power", "turbines") == READ.as_document()


@pytest.mark.parametrize("topic", [Topic("compact"), Topic("compact,delete")])
def test_a_topic_that_is_not_whole_any_more_is_refused(ledger: Ledger, topic: Topic) -> None:
    start(ledger)
    with pytest.raises(Conflict, match="reset the setting, and start its jobs again"):
        start(ledger, topic=topic)
    start(ledger)


def test_a_topic_with_its_producers_times_is_read(ledger: Ledger) -> None:
    start(ledger, topic=Topic(stamp="CreateTime"))


def test_a_run_is_refused_before_it_begins(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every start does this, a standby's too: no event says that the run starts, and no run is fenced."""
    fenced: list[int] = []
    monkeypatch.setattr(preparation, "fence_older_runs", lambda *_: fenced.append(1))
    monkeypatch.setattr(preparation, "require_newest_ledger", lambda *_: None)
    row = ledger.begin_run("power", 1)

    def prepare(topic: Topic) -> None:
        index: Any = topic
        run = JobRun(Settings(), ledger, index, row, load_pipeline(ledger, "power", 1))
        preparation.prepare_run(run, None, RewindPlan(1, 0), None)

    prepare(Topic())
    with pytest.raises(Conflict, match=r"cleanup\.policy=compact"):
        prepare(Topic("compact"))
    assert len(fenced) == [event.kind for event in ledger.events("power")].count(RUN_BEGINS) == 1


def test_a_backfill_is_refused_too(ledger: Ledger, tmp_path: Path) -> None:
    backfill = Backfill(Settings(data_dir=tmp_path, ledger_url=ledger_url(tmp_path)), "power", 2)
    index: Any = Topic("compact")
    backfill._index = index
    row: Any = None
    with pytest.raises(Conflict, match=r"cleanup\.policy=compact"):
        backfill._require_log(row, load_pipeline(ledger, "power", 1))
