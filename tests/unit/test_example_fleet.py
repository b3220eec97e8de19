"""The simulated fleet: the same weather in every run, and every spoiled report has the outcome that the fleet states."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from strandline.core.documents import read_documents
from strandline.core.streams.stream import StreamSpec
from strandline.example.fleet import TICK_MS, FaultKind, Fleet, Report, power_kw
from strandline.example.run import DOCUMENTS, example_text
from strandline.processing.formats.decoder import Decoder
from strandline.processing.formats.record_fields import record_fields
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.checker import check
from strandline.processing.pipelines.model.pipeline import PipelineSpec

TICK_FIRST = 172_800_000
"""Late in 2024."""


def example() -> CheckedPipeline:
    stream, pipeline = read_documents(example_text(), DOCUMENTS)
    return check(PipelineSpec.parse(pipeline), StreamSpec.parse(stream), pipeline)


def reports(fleet: Fleet, ticks: int, late_allowed: bool = True) -> list[Report]:
    return [report for tick in range(TICK_FIRST, TICK_FIRST + ticks) for report in fleet.reports(tick, late_allowed)]


def test_the_example_in_examples_is_the_one_in_the_package():
    in_examples = Path(__file__).parents[2] / "examples" / DOCUMENTS
    assert in_examples.read_bytes() == example_text()
    assert in_examples.is_symlink()


def test_the_example_is_a_cascade_from_minutes_to_hours():
    assert [(stage.name, stage.size_ms) for stage in example().stages] == [
        ("per_minute", 60_000),
        ("hourly", 3_600_000),
    ]


def test_same_seed_same_reports():
    assert reports(Fleet(seed=7), 20) == reports(Fleet(seed=7), 20)
    assert reports(Fleet(seed=7), 20) != reports(Fleet(seed=8), 20)


def test_every_turbine_reports_once_a_tick_within_it():
    tick = Fleet(spoiled_share=0.0).reports(TICK_FIRST)
    readings = [msgspec.json.decode(report.line) for report in tick]
    assert len({reading["turbine"] for reading in readings}) == len(readings) == 40
    assert {reading["ts"] // TICK_MS for reading in readings} == {TICK_FIRST}
    times_ms = [reading["ts"] for reading in readings]
    assert times_ms != sorted(times_ms), "the fleet must be out of order"


def test_about_one_in_a_hundred_is_spoiled_in_every_way():
    sent = reports(Fleet(), 1_000)
    spoiled = [report.spoiled for report in sent if report.spoiled]
    assert 0.008 < len(spoiled) / len(sent) < 0.012
    assert set(spoiled) == set(FaultKind)
    assert FaultKind.LATE not in {report.spoiled for report in reports(Fleet(), 1_000, late_allowed=False)}


def test_every_report_is_judged_as_the_fleet_says():
    """The decoder must reject the spoiled reports for exactly their reasons, and none of the others."""
    pipeline = example()
    rule = pipeline.event_time_rule
    decoder = Decoder(
        record_fields(pipeline.inputs[0].stream),
        pipeline.inputs[0].event_time_source,
        pipeline.inputs[0].columns_needed,
    )
    sent = reports(Fleet(spoiled_share=0.2), 300)
    watermark_ms = TICK_FIRST * TICK_MS - rule.delay_ms
    lines, log_times_ms = [report.line for report in sent], [watermark_ms + 4_000_000] * len(sent)
    decoded = decoder.decode(lines, log_times_ms, watermark_ms, rule.max_ahead_ms)
    expected = {index: report.spoiled.reason for index, report in enumerate(sent) if report.spoiled}
    assert {reject.index: reject.reason for reject in decoded.rejects} == expected


@pytest.mark.parametrize(("wind", "power"), [(0.0, 0.0), (2.9, 0.0), (12.0, 3_000.0), (20.0, 3_000.0), (25.1, 0.0)])
def test_the_power_curve(wind: float, power: float):
    assert power_kw(wind) == power


def test_the_wind_is_smooth():
    fleet = Fleet()
    steps = [
        abs(fleet.wind("dune", (second + 1) * 1000) - fleet.wind("dune", second * 1000)) for second in range(10_000)
    ]
    assert max(steps) < 0.02, "m/s in one second"
