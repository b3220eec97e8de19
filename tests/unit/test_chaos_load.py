"""The records of the chaos job's senders, and that the platform accepts the job."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from strandline.core.documents import read_documents
from strandline.core.settings import Settings
from strandline.core.streams.stream import StreamSpec
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec
from strandline.processing.pipelines.upgrade import Effect, changes_between
from tests.support.chaos.checking.pace import DELAY_MS, IDLE_MS, MAX_AHEAD_MS, PACES, Pace
from tests.support.chaos.kinds import CLOCK_STEPS_S
from tests.support.chaos.work import (
    CLIENTS,
    LARGE_SHARE,
    SPOILERS,
    JobLoad,
    documents,
    draw_awake,
    draw_size,
    draw_speed,
    make_reading,
)
from tests.support.faults.checker import UNKEYED
from tests.support.faults.history import History

RECORD_BYTES_MAX = Settings.model_fields["record_bytes_max"].default
EVENT_MS, NOW_MS = 1_795_000_000_000, 1_795_300_000_000


def pipeline_of(pace: Pace, version: int = 1) -> CheckedPipeline:
    stream_document, document = read_documents(documents("readings", "chaos", pace, version), "chaos.yaml")
    return check(PipelineSpec.parse(document), StreamSpec.parse(stream_document), document)


@pytest.mark.parametrize("pace", PACES.values(), ids=lambda pace: f"{pace.speed}x")
def test_the_windows_of_the_job_are_those_of_its_pace(pace: Pace) -> None:
    pipeline = pipeline_of(pace)
    assert {stage.name: stage.size_ms for stage in pipeline.stages} == pace.sizes_ms
    rule = pipeline.event_time_rule
    assert (rule.delay_ms, rule.idle_timeout_ms) == (DELAY_MS, IDLE_MS)


def test_each_version_of_the_job_computes_otherwise_and_can_take_over_from_the_one_before() -> None:
    versions = [pipeline_of(PACES[20], version) for version in range(1, 5)]
    for before, after in pairwise(versions):
        changes = changes_between(before, after)
        assert {change.effect for change in changes} == {Effect.REWIND}
        whats = {change.change for change in changes}
        assert whats == {"the aggregates of window short", "the steps before window short"}


def test_half_of_the_seeds_draw_an_event_time_as_fast_as_the_clock() -> None:
    drawn = Counter(draw_speed(seed) for seed in range(200))
    assert drawn.keys() == PACES.keys() and 70 < drawn[1] < 130


def test_a_large_record_is_as_large_as_gateways_take_whatever_is_wrong_with_it() -> None:
    chance = random.Random(1)
    made = [make_reading(chance, f"a-{n}", "r1-3", EVENT_MS, NOW_MS, RECORD_BYTES_MAX) for n in range(90)]
    assert {len(value) for _, value, _ in made} == {RECORD_BYTES_MAX}
    kinds = Counter((reason is not None, "-late" in record_id) for record_id, _, reason in made)
    assert kinds.keys() == {(False, False), (False, True), (True, False)} and min(kinds.values()) > 10
    assert len({reason for *_, reason in made}) == 5, "every reason, and none"


def test_large_records_are_few() -> None:
    chance = random.Random(1)
    large = sum(draw_size(chance, RECORD_BYTES_MAX) is not None for _ in range(100_000))
    assert 0.5 * LARGE_SHARE < large / 100_000 < 2 * LARGE_SHARE


def test_every_kind_of_broken_record_is_made_and_found_again_by_its_id() -> None:
    chance, reasons = random.Random(2), Counter[str | None]()
    for n in range(5_000):
        record_id, value, reason = make_reading(chance, f"r1-3-{n}", "r1-3", EVENT_MS, NOW_MS)
        reasons[reason] += 1
        assert f'"id":"{record_id}"'.encode() in value
    assert reasons.keys() == {None, *(reason for reason, _ in SPOILERS)}


def test_a_record_without_a_key_has_it_null_or_not_at_all_and_may_stand_in_any_partition() -> None:
    chance = random.Random(3)
    made = [make_reading(chance, f"r1-3-{n}", None, EVENT_MS, NOW_MS) for n in range(200)]
    assert all(record_id.endswith(UNKEYED) for record_id, *_ in made)
    good = [json.loads(value) for _, value, reason in made if reason is None]
    assert Counter(reading.get("client", "missing") for reading in good).keys() == {None, "missing"}
    keyed = [make_reading(chance, f"r1-3-{n}", "r1-3", EVENT_MS, NOW_MS) for n in range(200)]
    sites = Counter(json.loads(value).get("site", "missing") for _, value, reason in keyed if reason is None)
    assert sites.keys() == {None, "missing", "site-0"}


def test_in_a_rest_sometimes_one_sender_is_awake() -> None:
    chance = random.Random(4)
    assert {draw_awake(chance) for _ in range(100)} == {None, *range(8)}


async def pauses(load: JobLoad, client: str) -> bool:
    """Whether the client waits for longer than it does by itself."""
    try:
        await asyncio.wait_for(load.pause(client), 0.1)
    except TimeoutError:
        return True
    return False


def test_while_the_senders_rest_one_goes_on_and_each_of_its_records_has_a_key(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    history.close()
    load = JobLoad(history, lambda: 0, "readings", seed=5, speed=1)
    load.pause_s = 0.0
    load.begin_rest(awake=3)
    assert [asyncio.run(pauses(load, f"r1-{n}")) for n in range(8)] == [n != 3 for n in range(8)]
    values = [value for n in range(40) for _, value in load.next_batch("r1-3", n)]
    assert len(values) > 100 and all(b'"client":"r1-3"' in value for value in values)
    load.end_rest()
    assert not asyncio.run(pauses(load, "r1-5"))
    load.begin_rest(awake=None)
    assert asyncio.run(pauses(load, "r1-3"))
    load.is_stopping = True
    assert not asyncio.run(pauses(load, "r1-3")), "who stops the load waits for no rest"


def test_the_senders_send_at_the_rate_that_is_asked_for(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    history.close()
    load = JobLoad(history, lambda: 0, "readings", seed=5, speed=1, rate=1_000)
    records = sum(len(load.next_batch(f"r1-{n % CLIENTS}", n)) for n in range(40 * CLIENTS))
    assert records / (40 * load.pause_s) == pytest.approx(1_000, rel=0.1)


def test_a_record_of_the_future_is_that_by_a_clock_of_kafka_that_is_ahead_too():
    """Else it is used, and once no partition holds event time back it runs on for days: all that comes then is late."""
    reading = make_reading(random.Random(1), "a", "load-1", EVENT_MS, NOW_MS)[1]
    for reason, spoil in SPOILERS:
        if reason == "future_event":
            event_ms = json.loads(spoil("a", json.loads(reading), NOW_MS)[1])["ts"]
            assert all(event_ms - NOW_MS - step_s * 1_000 > 2 * MAX_AHEAD_MS for step_s in CLOCK_STEPS_S["kafka-clock"])
