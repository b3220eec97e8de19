"""Generations of results: which indices an alias shows, and which windows of each.

The job itself writes generation 1, whose indices join the alias as they are made. A backfill computes windows of the past
anew, into indices of a later generation that nobody sees; when it is complete, one request lets the alias show these, and
hides under a filter what they replace in every older one. What the alias shows follows from the list of complete
backfills alone, so the request can be repeated.

The job writes no window any more that a backfill covers. So a month's index that it makes after the swap needs no filter,
and one that was there keeps its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.core.errors import Conflict
from strandline.results.document import generation_of, index_stem
from strandline.results.elasticsearch_client import RequestRefused, request
from strandline.results.mapping import template_path

_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Generation:
    """What a complete backfill replaces in one store: the windows that end after `after_ms`, up to `up_to_ms`."""

    number: int
    after_ms: int
    up_to_ms: int

    def holds(self, end_ms: int) -> bool:
        return self.after_ms < end_ms <= self.up_to_ms


def generation_shown(generations: Sequence[Generation], end_ms: int) -> int:
    """The generation of which the alias shows a window with this end: the newest that holds it."""
    return max((one.number for one in generations if one.holds(end_ms)), default=1)


def newer_than(generations: Sequence[Generation], number: int) -> tuple[Generation, ...]:
    """The generations that replace something of generation `number`."""
    return tuple(one for one in generations if one.number > number and one.after_ms < one.up_to_ms)


def filter_of(generations: Sequence[Generation], number: int) -> dict[str, Any] | None:
    """What the alias shows of generation `number`, as a query; None: all of it."""
    newer = sorted(newer_than(generations, number), key=lambda one: one.number)
    if not newer:
        return None
    ranges = [
        {"range": {"@timestamp": {"gt": one.after_ms, "lte": one.up_to_ms, "format": "epoch_millis"}}} for one in newer
    ]
    return {"bool": {"must_not": ranges}}


def swap_aliases(url: str, stores: Mapping[str, Sequence[Generation]]) -> None:
    """Let each alias (store -> its complete backfills) show the newest generation of every window, all in one step.

    1. Make all that was written visible to searches, so that nothing is missing in the moment after.
    2. Find the mark of each store: on one of its indices an alias, which finds nothing, and whose name says which
       generation was shown last.
    3. One request sets the filter of every index and moves the marks. It is refused as a whole when a mark is no longer
       where it was: so one that was held up has no effect once a later one was made.

    Doing it again changes nothing. Raises Conflict when a later generation is shown already, IndexUnavailable,
    RequestRefused.
    """
    actions: list[dict[str, Any]] = []
    for store, generations in sorted(stores.items()):
        held = _marked(url, store)
        shown = {1, *(one.number for one in generations)}
        numbers = {index: generation_of(store, index) for index in held}
        for index, number in numbers.items():
            if number is not None and number in shown:
                if number > 1:
                    request(url, "POST", f"/{index}/_refresh", timeout_s=_TIMEOUT_S)
                hidden = filter_of(generations, number)
                action: dict[str, Any] = {"index": index, "alias": store}
                actions.append({"add": action if hidden is None else {**action, "filter": hidden}})
        actions += _move_marks(store, held, max(shown))
    if actions:
        request(url, "POST", "/_aliases", timeout_s=_TIMEOUT_S, body={"actions": actions})


def _marked(url: str, store: str) -> dict[str, set[str]]:
    """Index -> aliases of the store's indices, one of which has a mark: a first one is set where there is none."""
    held = _indices(url, store)
    if held and not _marks(store, held):
        first = {"actions": [{"add": _mark(store, next(iter(held)), 1)}]}
        request(url, "POST", "/_aliases", timeout_s=_TIMEOUT_S, body=first)
        held = _indices(url, store)
    return held


def _move_marks(store: str, held: Mapping[str, set[str]], newest: int) -> list[dict[str, Any]]:
    """The actions that leave one mark, of generation `newest`; they need every mark that is there now to be there still."""
    marks = _marks(store, held)
    if not marks:
        return []
    present = max(number for _, number in marks)
    if present > newest:
        raise Conflict(
            f"alias {store} shows generation {present} already; this swap, to generation {newest}, is overtaken"
        )
    removed = [{"remove": {"index": i, "alias": _mark_name(store, n), "must_exist": True}} for i, n in marks]
    return [*removed, {"add": _mark(store, next(iter(held)), newest)}]


def _marks(store: str, held: Mapping[str, set[str]]) -> list[tuple[str, int]]:
    """(index, generation) of each mark."""
    prefix = _mark_name(store, 0).removesuffix("0")
    return [
        (index, int(alias.removeprefix(prefix)))
        for index, aliases in held.items()
        for alias in sorted(aliases)
        if alias.startswith(prefix) and alias.removeprefix(prefix).isdecimal()
    ]


def _mark(store: str, index: str, generation: int) -> dict[str, Any]:
    return {"index": index, "alias": _mark_name(store, generation), "filter": {"match_none": {}}}


def _mark_name(store: str, generation: int) -> str:
    return f"{store}.shown.g{generation}"


def discard_generation(url: str, store: str, generation: int) -> None:
    """Delete what a backfill that never became complete has written; doing it again changes nothing.

    Raises IndexUnavailable, RequestRefused.
    """
    assert generation > 1, "the first generation is the job's own"
    for index in _indices(url, store):
        if generation_of(store, index) == generation:
            _delete(url, f"/{index}")
    _delete(url, template_path(index_stem(store, generation)))


def _indices(url: str, store: str) -> dict[str, set[str]]:
    """The indices of the store, of all generations, by name, each with its aliases."""
    parameters = {"expand_wildcards": "all", "ignore_unavailable": "true"}
    held = request(url, "GET", f"/{store}-*,{store}.g*-*/_alias", timeout_s=_TIMEOUT_S, parameters=parameters)
    return {index: set(held[index]["aliases"]) for index in sorted(held) if generation_of(store, index) is not None}


def _delete(url: str, path: str) -> None:
    try:
        request(url, "DELETE", path, timeout_s=_TIMEOUT_S)
    except RequestRefused as error:
        if error.status != 404:
            raise
