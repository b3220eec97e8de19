"""The generation of a window that an alias shows: names, filters and the swap request, over a double of the index."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.core.errors import Conflict
from strandline.results import generations, shared_searches
from strandline.results.document import DocumentShape
from strandline.results.elasticsearch_client import RequestRefused
from strandline.results.generations import (
    Generation,
    discard_generation,
    filter_of,
    generation_shown,
    swap_aliases,
)
from strandline.results.index_settings import IndexSettings
from strandline.results.mapping import _build_template, build_mapping
from strandline.results.names import check_emit_name, generation_of, index_name, index_stem

HOUR_MS = 3_600_000
SECOND, THIRD = Generation(2, HOUR_MS, 9 * HOUR_MS), Generation(3, 4 * HOUR_MS, 6 * HOUR_MS)


@pytest.mark.guarantee("G221")
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
    template = _build_template("farm.g2", "farm", False, mapping, IndexSettings())
    assert template["index_patterns"] == ["farm.g2-*"]
    assert template["template"]["aliases"].keys() == {"{index}.write"}
    first = _build_template("farm", "farm", 1, mapping, IndexSettings())
    assert first["template"]["aliases"].keys() == {"farm", "{index}.write"}
    assert template["priority"] > first["priority"]


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


MAPPING = build_mapping(DocumentShape("farm", "power", "minute", 1, (), (("n", "long"),)))


class Index:
    """Double of Elasticsearch: it stores aliases of indices and changes them atomically. It records the requests."""

    def __init__(self, *names: str) -> None:
        self.aliases: dict[str, dict[str, Any]] = {name: {} for name in names}
        self.asked: list[tuple[str, str, Any]] = []
        self.foreign: set[str] = set()

    def request(self, url: str, method: str, path: str, *, body: Any = None, **_: Any) -> Any:
        self.asked.append((method, path, body))
        if method == "GET":
            return {
                name: {"aliases": dict(aliases), "mappings": {} if name in self.foreign else MAPPING}
                for name, aliases in self.aliases.items()
            }
        if method == "DELETE" and path.removeprefix("/") not in self.aliases:
            raise RequestRefused("there is none", 404, "index_not_found_exception")
        if path == "/_aliases":
            self.apply(body["actions"])
        return {}

    def apply(self, actions: list[dict[str, Any]]) -> None:
        changed = {name: dict(aliases) for name, aliases in self.aliases.items()}
        for ((verb, action),) in (one.items() for one in actions):
            aliases = changed[action["index"]]
            if verb == "add":
                aliases[action["alias"]] = action.get("filter")
            elif action["alias"] in aliases:
                del aliases[action["alias"]]
            else:
                raise RequestRefused("required alias does not exist", 404, "aliases_not_found_exception")
        self.aliases = changed

    def shown(self, alias: str) -> dict[str, Any]:
        return {name: aliases[alias] for name, aliases in self.aliases.items() if alias in aliases}


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    """Generation 4 is not complete, and `farm-x` is another emission."""
    found = Index(
        "farm-2026.10", "farm-2026.11", "farm.g2-2026.10", "farm.g3-2026.10", "farm.g4-2026.10", "farm-x-2026.10"
    )
    monkeypatch.setattr(generations, "request", found.request)
    monkeypatch.setattr(shared_searches, "request", found.request)
    monkeypatch.setattr("strandline.results.elasticsearch_client.request", found.request)  # of `delete`
    return found


def test_the_swap_is_one_request_that_can_be_repeated(index: Index) -> None:
    for _ in range(2):
        index.asked.clear()
        swap_aliases("http://index", {"farm": [SECOND, THIRD]})
        refreshed = [path for method, path, _ in index.asked if path.endswith("_refresh")]
        assert refreshed == ["/farm.g2-2026.10/_refresh", "/farm.g3-2026.10/_refresh"]
        assert index.asked[-1][1] == "/_aliases", "what is new can be searched before it is shown"
        assert index.shown("farm") == {
            "farm-2026.10": filter_of([SECOND, THIRD], 1),
            "farm-2026.11": filter_of([SECOND, THIRD], 1),
            "farm.g2-2026.10": filter_of([SECOND, THIRD], 2),
            "farm.g3-2026.10": None,
        }
        assert index.shown("farm.shown.g3") == {"farm-2026.11": {"match_none": {}}}, "not on what is deleted first"
        assert index.aliases["farm-x-2026.10"] == {}
    asked = [path for method, path, _ in index.asked if method == "POST" and path == "/_aliases"]
    assert len(asked) == 1


def test_a_swap_that_was_held_up_has_no_effect_once_a_later_one_was_made(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swap to generation 2 is sent while generation 3 is being shown; or only begins afterwards."""

    def late(url: str, method: str, path: str, *, body: Any = None, **more: Any) -> Any:
        if path == "/_aliases" and len(body["actions"]) > 1:
            monkeypatch.setattr(generations, "request", index.request)
            swap_aliases("http://index", {"farm": [SECOND]})
            swap_aliases("http://index", {"farm": [SECOND, THIRD]})
        return index.request(url, method, path, body=body, **more)

    monkeypatch.setattr(generations, "request", late)
    with pytest.raises(RequestRefused, match="required alias does not exist"):
        swap_aliases("http://index", {"farm": [SECOND]})
    after = index.aliases
    with pytest.raises(Conflict, match="shows generation 3 already"):
        swap_aliases("http://index", {"farm": [SECOND]})
    assert index.aliases == after
    assert index.shown("farm")["farm.g3-2026.10"] is None


def test_where_nothing_was_ever_written_there_is_nothing_to_swap(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.aliases.clear()
    swap_aliases("http://index", {"farm": [SECOND]})
    assert [method for method, _, _ in index.asked] == ["GET"]


def test_what_was_never_complete_is_deleted_and_nothing_else(index: Index) -> None:
    discard_generation("http://index", "farm", 4)
    deleted = [path for method, path, _ in index.asked if method == "DELETE"]
    assert deleted == ["/farm.g4-2026.10", "/_index_template/strandline-farm.g4"]


@pytest.mark.guarantee("G180")
def test_an_index_of_somebody_else_is_not_deleted_for_its_name(index: Index) -> None:
    index.foreign.add("farm.g4-2026.10")
    discard_generation("http://index", "farm", 4)
    assert [path for method, path, _ in index.asked if method == "DELETE"] == ["/_index_template/strandline-farm.g4"]
