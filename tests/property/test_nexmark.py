"""The queries of NEXMark at the desk against DuckDB, which answers them from their descriptions: the same results, whatever the
disorder, the partitions and the slices."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from benchmarks.nexmark.generator import GROUP, START_MS, Nexmark
from benchmarks.nexmark.oracle import QUERIES, Oracle
from benchmarks.nexmark.queries import NAMES, OF_SHORT_AUCTIONS, Log, read_query, rows_of_results, run_at_desk

MIDNIGHT_MS = START_MS // 86_400_000 * 86_400_000 + 86_400_000


@cache
def small(rate: int) -> tuple[Log, Oracle]:
    """2,400 records around midnight."""
    made = Nexmark(records=2_400, seed=3, rate=rate, disorder_ms=3_500, start_ms=MIDNIGHT_MS - 1_200_000 // rate)
    log = Log.of(made, partitions=3)
    return log, Oracle(log)


@pytest.mark.guarantee(
    "G490",
    "Every implemented NEXMark query matches its description to the last digit: a separate DuckDB query over late "
    "records, in any number of partitions and slices, gives the same.",
    promise="each-result-exists-once-with-the-right-value",
)
@pytest.mark.parametrize("name", NAMES)
def test_a_query_gives_what_its_description_says(name):
    log, oracle = small(500 if name in OF_SHORT_AUCTIONS else 20)
    expected = oracle.rows(name)
    assert set(expected) == set(QUERIES[name]), "a stage without a result shows nothing"
    assert rows_of_results(run_at_desk(read_query(name), log, 700)) == expected


@pytest.mark.guarantee("G490")
@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("start", ["00:30", "06:50", "07:50", "18:50", "19:50", "23:50"])
def test_a_query_gives_it_at_any_time_however_the_log_is_cut(name, start):
    hours, minutes = map(int, start.split(":"))
    logs = [(10_000, 1, None), (500, 4, 1_000), (10, 2, 9_999)][: 2 if name in OF_SHORT_AUCTIONS else 3]
    for seed, (rate, partitions, slice_records) in enumerate(logs):
        start_ms = START_MS // 86_400_000 * 86_400_000 + (hours * 60 + minutes) * 60_000
        made = Nexmark(records=8_000, seed=seed, rate=rate, disorder_ms=seed * 1_900, start_ms=start_ms)
        log = Log.of(made, partitions)
        assert rows_of_results(run_at_desk(read_query(name), log, slice_records)) == Oracle(log).rows(name)


def test_there_is_an_oracle_for_each_query():
    assert set(NAMES) == set(QUERIES)


@pytest.mark.guarantee("G492")
def test_the_generator_is_a_function_of_seed_and_number():
    made = Nexmark(2_000).lines()
    assert Nexmark(500).lines() == made[:500]
    assert Nexmark(2_000, seed=2).lines() != made
    late = Nexmark(2_000, disorder_ms=300)
    assert sorted(late.lines()) == sorted(made) and late.lines() != made
    waits = late.log_ms - late.event_ms
    assert waits.min() >= 0 and waits.max() <= 300 and (late.log_ms[1:] >= late.log_ms[:-1]).all()


@pytest.mark.guarantee(
    "G492",
    "The records of NEXMark have the published proportions, and are the same bytes on every machine for the same "
    "options.",
    promise="all-forms-of-a-pipeline-agree",
)
def test_the_auction_house_is_as_it_is_published():
    records = [json.loads(line) for line in Nexmark(20_000).lines()]
    people, auctions, bids = ([one for one in records if one["kind"] == kind] for kind in ("person", "auction", "bid"))
    assert (len(people), len(auctions), len(bids)) == (400, 1_200, 18_400)
    assert [one["id"] for one in people] == list(range(1_000, 1_400))
    assert [one["id"] for one in auctions] == list(range(1_000, 2_200))
    assert records[0]["kind"] == records[GROUP]["kind"] == "person"
    # A new hot auction each hundred, and half of the bids for it; three of four bids by a hot bidder, likewise of sellers.
    assert share(one["auction"] % 100 == 0 for one in bids) == pytest.approx(0.5, abs=0.02)
    assert share(one["bidder"] % 100 == 1 for one in bids) == pytest.approx(0.75, abs=0.02)
    assert share(one["seller"] % 100 == 0 for one in auctions) == pytest.approx(0.75, abs=0.04)
    assert share(one["price"] < 10_000 for one in bids) == pytest.approx(1 / 3, abs=0.02)
    assert all(0 < one["expires"] - one["date_time"] <= 2 * 1_667 // 10 + 1 for one in auctions)
    assert all(one["reserve"] > one["initial_bid"] for one in auctions)
    assert {one["category"] for one in auctions} == {10, 11, 12, 13, 14}
    assert share(one["channel"] in ("Google", "Facebook", "Baidu", "Apple") for one in bids) == pytest.approx(
        0.5, abs=0.02
    )


def share(found) -> float:
    listed = list(found)
    return sum(listed) / len(listed)


@pytest.mark.guarantee("G492")
def test_its_bytes_are_the_same_on_every_machine():
    expected = (Path(__file__).parents[2] / "examples" / "nexmark" / "records.ndjson").read_bytes()
    assert (
        b"".join(line + b"\n" for line in Nexmark(records=100, seed=1, rate=10, disorder_ms=3_000).lines()) == expected
    )
