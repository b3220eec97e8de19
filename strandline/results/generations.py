"""Generations of results: the indices that an alias shows, and the windows that it shows of each.

The job itself writes generation 1, whose indices join the alias when they are created. After a reset, or when the name
of a deleted job is reused, the job writes a later generation (its *own*). Then the alias shows no earlier generations.

A backfill recomputes past windows into indices of a later generation, which are hidden at first. When it is complete,
one request adds them to the alias, and filters out the windows that they replace in older generations. The content of
the alias depends only on the list of complete backfills, so the request can be repeated.

The job never again writes a window that a backfill covers. So an index that it creates after the swap needs no filter,
and older indices keep their filters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.core.errors import Conflict
from strandline.results.elasticsearch_client import delete, request
from strandline.results.mapping import is_ours, template_path
from strandline.results.names import generation_of, index_stem
from strandline.results.shared_searches import aliases_of

_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Generation:
    """Windows that a complete backfill replaces in one store: those that end after `after_ms`, up to `up_to_ms`."""

    number: int
    after_ms: int
    up_to_ms: int

    def holds(self, end_ms: int) -> bool:
        return self.after_ms < end_ms <= self.up_to_ms


def generation_shown(generations: Sequence[Generation], end_ms: int, own: int = 1) -> int:
    """Return the generation that the alias shows for a window with this end: the newest that contains it, or the job's
    own."""
    return max((one.number for one in generations if one.holds(end_ms)), default=own)


def newer_than(generations: Sequence[Generation], number: int) -> tuple[Generation, ...]:
    """Return the generations that replace windows of generation `number`."""
    return tuple(one for one in generations if one.number > number and one.after_ms < one.up_to_ms)


def filter_of(generations: Sequence[Generation], number: int) -> dict[str, Any] | None:
    """Return the query for the windows of generation `number` that the alias shows. None if it shows all of them."""
    newer = sorted(newer_than(generations, number), key=lambda one: one.number)
    if not newer:
        return None
    ranges = [
        {"range": {"@timestamp": {"gt": one.after_ms, "lte": one.up_to_ms, "format": "epoch_millis"}}} for one in newer
    ]
    return {"bool": {"must_not": ranges}}


def swap_aliases(url: str, stores: Mapping[str, Sequence[Generation]], own: int = 1) -> None:
    """Make each alias show the newest generation of every window, in one request.

    1. Refresh the new indices, so that searches find all their documents directly after the swap.
    2. Find the mark of each store: an alias on one of its indices that matches no document, and whose name contains the
       newest generation shown.
    3. Send one request that sets the filter of every index and moves the marks. Elasticsearch refuses it as a whole if
       a mark has moved, so a delayed swap can't undo a newer one.

    Idempotent. Raises Conflict if a later generation is shown already, IndexUnavailable, and RequestRefused.

    Args: stores: Alias -> its complete backfills. own: Generation that the job itself writes.
    """
    actions: list[dict[str, Any]] = []
    for store, generations in sorted(stores.items()):
        held = _marked(url, store, own)
        shown = {own, *(one.number for one in generations)}
        numbers = {index: generation_of(store, index) for index in held}
        for index, number in numbers.items():
            if number is not None and number in shown:
                if number > own:
                    request(url, "POST", f"/{index}/_refresh", timeout_s=_TIMEOUT_S)
                hidden = filter_of(generations, number)
                action: dict[str, Any] = {"index": index, "alias": store}
                actions.append({"add": action if hidden is None else {**action, "filter": hidden}})
        actions += _move_marks(store, held, max(shown), own)
    if actions:
        request(url, "POST", "/_aliases", timeout_s=_TIMEOUT_S, body={"actions": actions})


def hide_older(url: str, store: str, own: int) -> None:
    """Remove generations below `own` from the alias, and delete their marks. Idempotent.

    A delayed swap then doesn't find its mark, and is refused. Raises IndexUnavailable, RequestRefused.
    """
    if own == 1:
        return
    actions = [
        {"remove": {"index": index, "alias": alias}}
        for index, aliases in indices_of(url, store).items()
        if (generation_of(store, index) or own) < own
        for alias in sorted(aliases)
        if alias == store or alias.startswith(_mark_name(store, 0).removesuffix("0"))
    ]
    if actions:
        request(url, "POST", "/_aliases", timeout_s=_TIMEOUT_S, body={"actions": actions})


def _marked(url: str, store: str, own: int) -> dict[str, set[str]]:
    """Return index -> its aliases, for each index of the store. Sets a first mark if the store has none."""
    held = indices_of(url, store)
    if held and not _marks(store, held):
        first = {"actions": [{"add": _mark(store, _newest(store, held, own), own)}]}
        request(url, "POST", "/_aliases", timeout_s=_TIMEOUT_S, body=first)
        held = indices_of(url, store)
    return held


def _move_marks(store: str, held: Mapping[str, set[str]], newest: int, own: int) -> list[dict[str, Any]]:
    """Return the actions that replace the marks by a mark of generation `newest`.

    They fail if an existing mark has moved.
    """
    marks = _marks(store, held)
    if not marks:
        return []
    present = max(number for _, number in marks)
    if present > newest:
        raise Conflict(
            f"alias {store} shows generation {present} already; this swap, to generation {newest}, is outdated"
        )
    removed = [{"remove": {"index": i, "alias": _mark_name(store, n), "must_exist": True}} for i, n in marks]
    return [*removed, {"add": _mark(store, _newest(store, held, own), newest)}]


def _newest(store: str, held: Iterable[str], own: int) -> str:
    """Return the index for a mark: the last one that a lifecycle policy deletes, and not one of a backfill that may be
    discarded."""
    return max(held, key=lambda index: (generation_of(store, index) == own, index))


def _marks(store: str, held: Mapping[str, set[str]]) -> list[tuple[str, int]]:
    """Return (index, generation) of each mark."""
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
    """Delete the indices of a backfill that did not complete. Idempotent. Indices that Strandline didn't create stay.

    Raises IndexUnavailable, RequestRefused.
    """
    assert generation > 1, "the first generation is the job's own"
    for index in indices_of(url, store):
        if generation_of(store, index) == generation and _is_ours(url, index):
            delete(url, f"/{index}", timeout_s=_TIMEOUT_S)
    delete(url, template_path(index_stem(store, generation)), timeout_s=_TIMEOUT_S)


def newest_generation(url: str, stores: Iterable[str]) -> int:
    """Return the highest generation that has an index in one of these stores; 0 if there is none.

    This includes generations of backfills and resets that an older ledger doesn't contain. Raises IndexUnavailable,
    RequestRefused.
    """
    numbers = (generation_of(store, index) for store in stores for index in indices_of(url, store))
    return max((number for number in numbers if number is not None), default=0)


def indices_of(url: str, store: str) -> dict[str, set[str]]:
    """Return index -> its aliases, for the store's indices of all generations.

    Raises IndexUnavailable, RequestRefused.
    """
    held = aliases_of(url, f"{store}-*,{store}.g*-*")
    return {index: set(held[index]["aliases"]) for index in sorted(held) if generation_of(store, index) is not None}


def _is_ours(url: str, index: str) -> bool:
    parameters = {"ignore_unavailable": "true"}
    held = request(url, "GET", f"/{index}/_mapping", timeout_s=_TIMEOUT_S, parameters=parameters)
    return index in held and is_ours(held[index]["mappings"])
