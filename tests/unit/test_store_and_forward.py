"""Devices that were away: records without a window are never late, and a window decides about its own records."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from strandline.core.record_headers import REASON_LATE
from strandline.processing.desk.desk import Desk, DeskResult, LocalDeadLetter
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.desk.records import DeskRecords
from strandline.processing.lineage.dry_run import DryRun
from strandline.processing.source.decoding import decoding_of
from strandline.processing.source.recorded_counts import RecordedCounts
from strandline.processing.source.slice_rows import SourceFacts
from tests.unit.test_command_line import Say, say

__all__ = ["say"]

ROOT = Path(__file__).parents[2]
DOCUMENT = """\
stream: buoys
schema: {buoy: string, at: timestamp}
key: buoy
retention: 1d
---
pipeline: p
input: {stream: buoys}
event_time: {field: at, delay: DELAY}
steps:
STEPS
"""
EMIT = "  - emit: [{elasticsearch: all}]"
WINDOW = "  - window: {name: w, tumbling: 1h, by: [buoy], aggregate: {n: count(*)}}\n    emit: [{elasticsearch: w}]"
DEDUPE = "  - dedupe: {by: [buoy], within: 1m}\n" + EMIT
RECORDS = [
    json.dumps({"buoy": buoy, "at": f"2026-11-{day:02}T12:00:00Z"}).encode()
    for buoy, day in [("a", 10), ("b", 1), ("b", 2), ("a", 11)]
]


def text_of(steps: str, delay: str = "10s") -> bytes:
    return DOCUMENT.replace("STEPS", steps).replace("DELAY", delay).encode()


@pytest.mark.guarantee(
    "G911",
    "A pipeline without windows and `dedupe` stores each record, no matter how old it is. Lateness is evaluated only where a "
    "window or a `dedupe` needs it.",
    promise="no-record-is-late-without-cause",
)
@pytest.mark.parametrize(("steps", "late"), [(EMIT, 0), (WINDOW, 2), (DEDUPE, 2), (f"{EMIT}\n{WINDOW}", 2)])
def test_only_windows_and_dedupe_have_late_records(steps: str, late: int) -> None:
    desk = Desk(read_pipeline(text_of(steps), "x.yaml"), 1)
    outcomes = [*desk.feed(DeskRecords(RECORDS, [0] * 4)), *desk.drain()]
    assert [one.reason for one in outcomes if isinstance(one, LocalDeadLetter)] == [REASON_LATE] * late
    if steps == EMIT:
        assert len([one for one in outcomes if isinstance(one, DeskResult)]) == 4


def test_a_dead_letter_that_is_requeued_is_not_late_without_a_window() -> None:
    for steps, outcome in ((EMIT, "accepted"), (WINDOW, REASON_LATE)):
        dry_run = DryRun(read_pipeline(text_of(steps), "x.yaml"), late_below_ms=2_000_000_000_000)
        assert dry_run.of_records([RECORDS[0]], [{}], 2_000_000_000_000)[0].outcome == outcome


def test_a_delay_without_windows_needs_no_retention() -> None:
    assert decoding_of(read_pipeline(text_of(EMIT, "30d"), "x.yaml"), "").inputs[0].late_limit == ""
    with pytest.raises(Exception, match="reach back 4w2d1h"):
        read_pipeline(text_of(WINDOW, "30d"), "x.yaml")


def test_a_replay_by_another_version_may_count_other_late_records() -> None:
    """A window that is added to a pipeline has late records where there were none."""
    then = RecordedCounts("p", 1, 2, 4, {}, has_expression=False)
    found = SourceFacts(records=4, rejected={REASON_LATE: 2})
    then.require_same(found)
    with pytest.raises(Exception, match="0 records rejected as late then, 2 now"):
        RecordedCounts("p", 1, 2, 4, {}, has_expression=True).require_same(found)


def test_the_example_passes_its_tests_and_contains_the_pipelines_of_the_page(say: Say) -> None:
    said = say("pipeline", "test", str(ROOT / "examples" / "tests" / "store-and-forward.yaml"))
    assert said.code == 0, said.out + said.err
    page = (ROOT / "docs" / "store-and-forward.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    documents = list(yaml.safe_load_all((ROOT / "examples" / "store-and-forward.yaml").read_text()))
    assert [block for block in blocks if block not in documents] == []
    assert len(blocks) == 2
