"""Which generation of a window an alias shows: names, filters and the request that swaps, over a double of the index."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.results import generations
from strandline.results.document import DocumentShape, check_emit_name, generation_of, index_name, index_stem
from strandline.results.elasticsearch_client import RequestRefused
from strandline.results.generations import (
    Generation,
    discard_generation,
    filter_of,
    generation_shown,
    swap_aliases,
)
from strandline.results.mapping import _build_template, build_mapping

HOUR_MS = 3_600_000
SECOND, THIRD = Generation(2, HOUR_MS, 9 * HOUR_MS), Generation(3, 4 * HOUR_MS, 6 * HOUR_MS)


def test_each_generation_has_indices_of_its_own() -> None:
    assert index_name(index_stem("farm", 1), 0) == "farm-1970.01"
    assert index_name(index_stem("farm", 2), 0) == "farm.g2-1970.01"
    assert generation_of("farm", "farm-1970.01") == 1
    assert generation_of("farm", "farm.g12-1970.01") == 12
    assert generation_of("farm", "farm-minute-1970.01") is None
    assert generation_of("farm", "farm.gx-1970.01") is None
    assert generation_of("farm.x", "farm-x-1970.01") is None


@pytest.mark.parametrize("name", ["farm.g2", "farm.g17", "a.g0"])
def test_no_emission_may_be_named_like_a_generation(name: str) -> None:
    with pytest.raises(ValueError, match=r"ends like a generation"):
        check_emit_name(name)
    check_emit_name(f"{name}-minute")


def test_the_indices_of_a_later_generation_get_no_alias_by_themselves() -> None:
    mapping = build_mapping(DocumentShape("farm", "power", "minute", 1, (), (("n", "long"),)))
    template = _build_template("farm.g2", {}, mapping, 1, 0)
    assert template["index_patterns"] == ["farm.g2-*"]
    assert template["template"]["aliases"] == {}
    assert template["priority"] > _build_template("farm", {"farm": {}}, mapping, 1, 0)["priority"]


def test_a_window_is_shown_of_the_newest_generation_that_holds_it() -> None:
    ends = [1, 2, 4, 5, 6, 7, 9, 10]
    shown = [generation_shown([SECOND, THIRD], end * HOUR_MS) for end in ends]
    assert shown == [1, 2, 2, 3, 3, 2, 2, 1]


def test_an_older_generation_is_shown_where_no_newer_one_replaced_it() -> None:
    def hidden(number: int) -> list[tuple[int, int]]:
        query = filter_of([THIRD, SECOND], number)
        ranges = query["bool"]["must_not"] if query else []
        return [(one["range"]["@timestamp"]["gt"], one["range"]["@timestamp"]["lte"]) for one in ranges]

    assert hidden(1) == [(HOUR_MS, 9 * HOUR_MS), (4 * HOUR_MS, 6 * HOUR_MS)]
    assert hidden(2) == [(4 * HOUR_MS, 6 * HOUR_MS)]
    assert filter_of([SECOND, THIRD], 3) is None


class Index:
    """Stands for Elasticsearch: holds names of indices, keeps what it was asked."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.asked: list[tuple[str, str, Any]] = []

    def request(self, url: str, method: str, path: str, *, body: Any = None, **_: Any) -> Any:
        self.asked.append((method, path, body))
        if method == "GET":
            return {name: {"aliases": {}} for name in self.names}
        if method == "DELETE" and path.removeprefix("/") not in self.names:
            raise RequestRefused("there is none", 404, "index_not_found_exception")
        return {}


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    found = Index(
        "farm-2026.10", "farm-2026.11", "farm.g2-2026.10", "farm.g3-2026.10", "farm.g4-2026.10", "farm-x-2026.10"
    )
    monkeypatch.setattr(generations, "request", found.request)
    return found


def test_the_swap_is_one_request_that_can_be_repeated(index: Index) -> None:
    """Generation 4 is not complete, and `farm-x` is another emission: neither is touched."""
    for _ in range(2):
        index.asked.clear()
        swap_aliases("http://index", {"farm": [SECOND, THIRD]})
        refreshed = [path for method, path, _ in index.asked if path.endswith("_refresh")]
        assert refreshed == ["/farm.g2-2026.10/_refresh", "/farm.g3-2026.10/_refresh"]
        ((_, path, body),) = [one for one in index.asked if one[0] == "POST" and one[1] == "/_aliases"]
        assert index.asked[-1][1] == path, "what is new can be searched before it is shown"
        added = {one["add"]["index"]: one["add"].get("filter") for one in body["actions"]}
        assert added == {
            "farm-2026.10": filter_of([SECOND, THIRD], 1),
            "farm-2026.11": filter_of([SECOND, THIRD], 1),
            "farm.g2-2026.10": filter_of([SECOND, THIRD], 2),
            "farm.g3-2026.10": None,
        }
        assert {one["add"]["alias"] for one in body["actions"]} == {"farm"}


def test_what_was_never_complete_is_deleted_and_nothing_else(index: Index) -> None:
    discard_generation("http://index", "farm", 4)
    deleted = [path for method, path, _ in index.asked if method == "DELETE"]
    assert deleted == ["/farm.g4-2026.10", "/_index_template/strandline-farm.g4"]
