"""The commands of docs/tutorial.md and docs/tutorial-devices.md, in order, each page with a separate stack.

What can be tested without a stack is in tests/unit/test_tutorials.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.tutorials import DEVICES, FIRST, Typist, blocks, typing


@pytest.fixture
def typist(monkeypatch: pytest.MonkeyPatch) -> Iterator[Typist]:
    monkeypatch.setenv("STRANDLINE_STANDBYS", "0")
    with typing() as one:
        yield one


def sources(answer: str) -> list[dict[str, Any]]:
    """The documents that a search of Elasticsearch gave."""
    found = json.loads(answer[answer.index('{\n  "took"') :])
    return [hit["_source"] for hit in found["hits"]["hits"]]


@pytest.mark.guarantee("G791")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_command_of_the_tutorial_does_what_it_says(typist: Typist) -> None:
    up, check, apply, send, results, draw, rejected, audit, down = blocks(FIRST)
    typist.type(up)
    typist.type(check)
    typist.type(apply)
    assert json.loads(typist.type(send)) == {"accepted": 5}
    rows = [(one["room"], one["n"], one["mean"]) for one in sources(typist.type(results))]
    assert sorted(rows) == [("cellar", 1, 12.0), ("kitchen", 1, 22.3), ("kitchen", 2, 21.65)]
    typist.type(draw)
    data = json.loads(re.findall(r'id="data">(.*?)</script>', (typist.directory / "comfort.html").read_text())[0])
    assert data["series"] == ["kitchen", "cellar"]
    assert data["data"][1:] == [[21.65, 22.3], [12.0, None]]
    letters = typist.type(rejected)
    assert "schema" in letters and "celsius" in letters
    typist.type(audit)
    typist.type(down)
    assert not (typist.directory / "data" / "pids.json").exists() or "kafka" not in json.loads(
        (typist.directory / "data" / "pids.json").read_text()
    )


@pytest.mark.guarantee("G291")
@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_devices_become_documents_and_their_broken_records_are_mended(typist: Typist) -> None:
    up, declare, desk, apply, explain, publish, look, letters, repair, replay, drain, *pump, down = blocks(DEVICES)
    typist.type(up)
    typist.type(declare)
    assert "two-readings-and-a-broken-one: ok" in typist.type(desk)
    typist.type(apply)
    assert "boiler-heat" in typist.type(explain)
    typist.type_until(explain, lambda said: "no sender has sent one yet" in said)
    typist.type(publish)
    listed = typist.type_until(letters, lambda said: said.count("schema") == 2)
    assert re.findall(r"boilers +(\d+) +(\d+) ", listed) == [("0", "2"), ("0", "3")]
    typist.type_until(look, lambda said: "east" in said)
    typist.type(repair)
    assert re.findall(r"^(accepted) +\d+$", typist.type(replay), re.MULTILINE) == ["accepted"] * 2
    temperatures = sources(typist.type(drain))
    assert {one["boiler"] for one in temperatures} == {"east"}
    assert sum(one["n"] for one in temperatures) == 4
    assert max(one["hottest"] for one in temperatures) == 95
    assert sum(one["n"] * one["mean"] for one in temperatures) == pytest.approx(23.5 + 24.5 + 95 - 25.5, abs=0.05)

    device, infer, at_desk, emit, show, change, readings, close = pump
    typist.type(device)
    assert "from: $.water.flow" in typist.type(infer)
    (minute,) = [json.loads(line) for line in typist.type(at_desk).splitlines()]
    assert (minute["pump"], minute["n"], minute["mean"]) == ("p1", 1, 3.25)
    typist.type(emit)
    typist.type_until(show, lambda said: re.search(r"^records +[1-9]", said, re.MULTILINE) is not None)
    typist.type(change)
    # Until the job has read both, its index may not be there.
    answer = typist.type_until(readings, lambda said: '"took"' in said and len(sources(said)) == 2)
    assert [one["flow"] for one in sources(answer)] == [3.25, 4.25]
    assert "3.75" in typist.type(close)
    typist.type(down)


@pytest.mark.parametrize(("page", "count"), [(FIRST, 9), (DEVICES, 20)])
def test_no_page_has_a_command_that_is_not_run(page: Any, count: int) -> None:
    assert len(blocks(page)) == count
