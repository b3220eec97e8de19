"""The metrics that the docs name are exposed by a process, under the same name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAMILIES = {
    "Counter": "_total",
    "CounterMetricFamily": "_total",
    "_counter": "_total",
    "Gauge": "",
    "GaugeMetricFamily": "",
    "HistogramMetricFamily": "",
    "InfoMetricFamily": "_info",
}
"""Function that makes a metric -> suffix that Prometheus sees after its name."""
NAMED_BY_PARTS = {f"strandline_ingest_spool_{name}" for name in ("records", "in_doubt_records", "bytes", "bytes_max")}
PREFIXES = "job|ingest|lookup|notice|mqtt|http|udp|tcp|poll|build"


def exposed() -> Iterator[str]:
    for path in (ROOT / "strandline").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "prometheus_client" not in text:
            continue
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
            function = call.func.id if isinstance(call.func, ast.Name) else ""
            if function in FAMILIES and call.args and isinstance(call.args[0], ast.Constant):
                name = str(call.args[0].value)
                prefix = "strandline_ingest_" if function == "_counter" else ""
                yield prefix + name.removesuffix(FAMILIES[function]) + FAMILIES[function]


EXPOSED = set(exposed()) | NAMED_BY_PARTS
PAGES = [*(ROOT / "docs").glob("*.md"), *(ROOT / "strandline").rglob("*page.md")]


@pytest.mark.guarantee(
    "G962",
    "Every metric that a page names is exposed under this name.",
    promise="failures-are-reported-with-their-remedy",
)
def test_every_metric_that_a_page_names_is_exposed() -> None:
    wrong = {
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        for name in re.findall(rf"\bstrandline_(?:{PREFIXES})_[a-z_]+\b", page.read_text(encoding="utf-8"))
        if name not in EXPOSED
    }
    assert wrong == set()
    assert {"strandline_job_records_total", "strandline_ingest_received_total", "strandline_build_info"} <= EXPOSED


def test_the_lists_of_metrics_are_complete() -> None:
    """`docs/monitoring.md` shortens names that follow each other: `strandline_ingest_received_total`, `_confirmed_total`."""
    listed = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    missing = {
        name for name in EXPOSED if name not in listed and f"`{name.removeprefix('strandline_ingest')}" not in listed
    }
    assert missing == set()
