"""Four hours of the example's wind farm through the whole platform: results, dead letters and picture are what the fleet says."""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from strandline.example.fleet import HOUR_MS, SITES, TICK_MS, Fleet, Report
from strandline.services.cli.result_verbs import page
from tests.support.browser import CHROMIUM, COLORS, look_at
from tests.support.platform import Platform

EXAMPLE = Path(__file__).parents[2] / "strandline" / "example" / "turbines.yaml"
DAY_MS, MINUTE_MS = 24 * HOUR_MS, 60_000
BASE_MS = (time.time_ns() // 1_000_000 // DAY_MS - 1) * DAY_MS
"""Yesterday: a report a year ahead of it lies in the future."""
TICKS = range(BASE_MS // TICK_MS, (BASE_MS + 4 * HOUR_MS) // TICK_MS)
TICKS_A_REQUEST = 25


def documents() -> str:
    """Return the example with other names, without the gateways that this test doesn't use."""
    text = "".join(one for one in EXAMPLE.read_text().splitlines(True) if not one.startswith(("mqtt:", "udp:")))
    for old, new in (
        ("stream: turbines\n", "stream: fleet\n"),
        ("{stream: turbines}", "{stream: fleet}"),
        ("pipeline: turbine-health", "pipeline: fleet-health"),
        ("elasticsearch: turbine-", "elasticsearch: fleet-"),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


def loads(reports: Iterable[Report]) -> dict[str, dict[int, float]]:
    """Return turbine -> minute -> its mean load, computed only from the reports and the pipeline's text."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in reports:
        if one.spoiled is None and (reading := json.loads(one.line))["state"] != "service":
            found[reading["turbine"]][reading["ts"] // MINUTE_MS * MINUTE_MS].append(reading["power"] / 3000)
    return {turbine: {at: fmean(values) for at, values in minutes.items()} for turbine, minutes in found.items()}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_farms_results_are_drawn_as_its_reports_say(platform: Platform, tmp_path: Path) -> None:
    """$STRANDLINE_PICTURES: where the picture is kept, for docs/."""
    platform.apply(documents())
    fleet = Fleet()
    reports = [one for tick in TICKS for one in fleet.reports(tick, late_allowed=False)]
    for first in range(0, len(reports), size := TICKS_A_REQUEST * 40):
        batch = [one.line for one in reports[first : first + size]]
        assert platform.send("fleet", batch) == len(batch)
    counts = platform.stop("fleet-health", drain=True)["counts"]
    assert counts["records"] == len(reports)
    assert counts["rejected"] == Counter(one.spoiled.reason for one in reports if one.spoiled)

    expected = loads(reports)
    by_turbine: dict[str, Any] = platform.control.get("/v1/results/fleet-minute", value="load", series=10)
    assert (by_turbine["step_ms"], by_turbine["by"], len(by_turbine["series"])) == (MINUTE_MS, "turbine", 10)
    for series in by_turbine["series"]:
        assert dict(series["points"]) == pytest.approx(expected[series["key"]])
    by_site: dict[str, Any] = platform.control.get("/v1/results/fleet-minute", value="load", by="site_id")
    assert {series["key"] for series in by_site["series"]} == set(SITES)
    for series in by_site["series"]:
        minutes = [one for turbine, one in expected.items() if turbine.startswith(series["key"])]
        of_site = {at: fmean(one[at] for one in minutes if at in one) for at in set().union(*minutes)}
        assert dict(series["points"]) == pytest.approx(of_site)
    if CHROMIUM is not None:
        kept = Path(os.environ.get("STRANDLINE_PICTURES", tmp_path)) / "load-by-site.png"
        drawn, pixels = look_at(page(by_site), tmp_path, kept)
        assert all(pixels[color] > 100 for color in COLORS)
        assert f"<dt>dead letters: decode</dt><dd>{counts['rejected']['decode']:,}</dd>" in drawn
