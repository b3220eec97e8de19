"""The guarantees of the ledger for replayed dead letters, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.core.errors import Fenced
from strandline.ledger.ledger import Ledger
from strandline.ledger.replays import Replay


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    opened = Ledger.open(ledger_url)
    yield opened
    opened.close()


def rows(*offsets: int) -> list[Replay]:
    return [Replay(f"turbines/0/{offset}", "power", offset, is_repaired=False) for offset in offsets]


@pytest.mark.guarantee("G224")
def test_an_attempt_looks_from_where_the_first_one_in_doubt_began(ledger: Ledger) -> None:
    first = ledger.begin_replay("turbines", {0: 10, 1: 20})
    assert (first.number, first.since) == (1, {0: 10, 1: 20})
    ledger.intend_replays(first, rows(1, 2))
    second = ledger.begin_replay("turbines", {0: 30, 1: 40})
    assert (second.number, second.since) == (2, {0: 10, 1: 20})
    ledger.settle_replays(second, ["turbines/0/1"])
    assert ledger.known_replays("turbines", ["turbines/0/1", "turbines/0/2", "turbines/0/3"]) == {
        "turbines/0/1": True,
        "turbines/0/2": False,
    }
    assert ledger.begin_replay("turbines", {0: 50, 1: 60}).since == {0: 10, 1: 20}
    third = ledger.begin_replay("turbines", {0: 50, 1: 60})
    ledger.settle_replays(third, ["turbines/0/2"])
    assert ledger.begin_replay("turbines", {0: 70, 1: 80}).since == {0: 70, 1: 80}


def test_an_older_attempt_is_fenced(ledger: Ledger) -> None:
    first = ledger.begin_replay("turbines", {0: 10})
    ledger.require_replay(first)
    ledger.begin_replay("turbines", {0: 10})
    ledger.begin_replay("others", {0: 10})
    with pytest.raises(Fenced):
        ledger.require_replay(first)
    with pytest.raises(Fenced):
        ledger.intend_replays(first, rows(1))
    with pytest.raises(Fenced):
        ledger.settle_replays(first, ["turbines/0/1"])
    assert ledger.known_replays("turbines", ["turbines/0/1"]) == {}


def test_what_was_put_back_stays_so(ledger: Ledger) -> None:
    attempt = ledger.begin_replay("turbines", {0: 10})
    for _ in range(2):
        ledger.intend_replays(attempt, rows(*range(1_200)))
        ledger.settle_replays(attempt, [one.identity for one in rows(*range(1_200))])
    ledger.intend_replays(attempt, rows(7))
    known = ledger.known_replays("turbines", [one.identity for one in rows(*range(1_201))])
    assert len(known) == 1_200 and all(known.values())


def test_a_stream_that_is_made_anew_has_nothing_put_back(ledger: Ledger) -> None:
    ledger.put_stream("turbines", {"stream": "turbines"})
    attempt = ledger.begin_replay("turbines", {0: 10})
    ledger.intend_replays(attempt, rows(1))
    ledger.delete_stream("turbines", {})
    assert ledger.known_replays("turbines", ["turbines/0/1"]) == {}
    assert ledger.begin_replay("turbines", {0: 0}).number == 1
