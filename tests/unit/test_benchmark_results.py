"""The output of the benchmarks: each writes its own part, with goals that are compared with the figures in it."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from benchmarks.ingest.load import Costs, Load
from benchmarks.ingest.results import HEADER, Goal, Measured
from benchmarks.ingest.work import RECORD_BYTES, line_requests, readings, single_requests, stream_texts
from benchmarks.nexmark import __main__ as nexmark
from benchmarks.report import put_part
from strandline.core.documents import read_documents
from strandline.core.streams.stream import StreamSpec


def test_each_part_is_replaced_alone(tmp_path: Path) -> None:
    results = tmp_path / "RESULTS.md"
    put_part(results, "jobs", "jobs, first\n")
    put_part(results, "ingest", "ingest\n")
    put_part(results, "jobs", "jobs, second\n")
    text = results.read_text()
    assert text.startswith("# Benchmark results\n")
    assert "first" not in text
    assert text.index("jobs, second") < text.index("ingest\n")
    put_part(results, "jobs", "jobs, second\n")
    assert results.read_text() == text


def load(records: int, seconds: float, cpu_s: float, *latencies_s: float) -> Load:
    return Load.of(
        records=records,
        records_whole_run=records,
        seconds=seconds,
        failed=0,
        first_failure="",
        before=Costs(1.0, 1.0, 1.0, 10.0),
        after=Costs(1.0 + cpu_s, 2.0, 1.5, 10.0 + cpu_s + 1.0 + 0.5 + 2.0),
        latencies_s=array("d", latencies_s),
    )


def test_a_row_says_what_was_reached_and_what_others_took() -> None:
    full, half = load(1_000_000, 10.0, 60.0, 0.1), load(500_000, 10.0, 30.0, *[0.01] * 99, 0.08)
    goal = Goal(records_a_second=100_000, cpu_s_per_million=59.9, latency_p99_s=0.05)
    row = dict(zip(HEADER, Measured.of("x", full, half, 1e6, goal).row(), strict=True))
    assert row["records/s"] == "100,000"
    assert row["gateway CPU-s per M records"] == "60.0"
    assert row["cores used by others"] == "0.2"
    assert row["goal"] == ">= 100,000/s reached, <= 59.9 CPU-s missed, p99 <= 50 ms reached"


def test_lost_datagrams_are_a_share_of_those_sent() -> None:
    goal = Goal(records_a_second=99_800, lost_share=0.002)
    measured = Measured("udp", 99_790.0, 5.0, 1.0, None, None, 1e6, 0.0, goal, lost=2_100, sent=1_000_000)
    row = dict(zip(HEADER, measured.row(), strict=True))
    assert row["lost"] == "0.210%"
    assert row["goal"] == ">= 99,800/s missed, <= 0.2% lost missed"


def test_the_records_are_as_long_as_the_table_says_and_differ() -> None:
    assert {len(reading) for reading in readings()} == {RECORD_BYTES}
    assert len(set(readings())) == 1_000
    assert readings() == readings()
    for requests in (single_requests("a"), line_requests("a")):
        assert len({len(request) for request in requests}) == 1  # the responder counts bytes
    specs = [StreamSpec.parse(read_documents(text, "x.yaml")[0]) for text in stream_texts()]
    assert [spec.key for spec in specs] == [None, "device", None]


def test_a_query_of_nexmark_has_its_cost_and_a_wrong_result_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    (cost,) = nexmark.measure(["q1"], 1_000)
    assert (cost.query, cost.results) == ("q1", 920) and cost.cpu_s_per_million > 0
    header, row, other = nexmark.cost_rows([nexmark.Cost("q2", 4.25, 1_234), nexmark.Cost("q4", 1.0, 5)], {"q2": 40.21})
    found = {"query": "Q2", "CPU-s per M records": "4.2", "plain Spark": "40.2", "results": "1,234"}
    assert dict(zip(header, row, strict=True)) == found and other == ("Q4", "1.0", "", "5")
    assert nexmark.measure_plain_spark(["q12"], 1_000) == {}, "it has no such query, and is not asked for all others"
    monkeypatch.setattr(nexmark.Oracle, "rows", lambda oracle, query: {})
    with pytest.raises(RuntimeError, match="q1: the results differ"):
        nexmark.measure(["q1"], 1_000)
