"""Sorted results. Only in a local run: an index, a table, and a stream have no order of their own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from strandline.core.documents import did_you_mean
from strandline.core.errors import InvalidDocument, Problem
from strandline.core.field_types import is_nested
from strandline.processing.desk.desk import DeskResult, Outcome
from strandline.processing.desk.result_files import AnyStage, typed_value

_TIME = "@timestamp"
_DESCENDING = "desc"


@dataclass(frozen=True)
class ResultOrder:
    """The fields that results are sorted by, the most important first."""

    by: tuple[tuple[str, str, bool], ...]
    """(field, type, True for descending order)."""

    @staticmethod
    def of(texts: Sequence[str], stages: Sequence[AnyStage]) -> ResultOrder:
        """Parse the order. Each string is a field that all of these stages have with one type, or `@timestamp`. `desc` after it
        means descending order. Raises InvalidDocument if a string is no such order."""
        by = []
        for text in texts:
            name, _, way = text.strip().partition(" ")
            kinds = {_TIME: "timestamp"}
            for stage in stages:
                kinds |= stage.field_types
            found = {stage.field_types.get(name) for stage in stages} if name != _TIME else {"timestamp"}
            kind = kinds.get(name, "")
            if way.strip().lower() not in ("", "asc", _DESCENDING):
                raise _wrong(f"{text!r} is not an order; write a field, or a field and desc")
            if name not in kinds:
                raise _wrong(f"'{name}' is not a field of the results{did_you_mean(name, kinds)}")
            if found != {kind}:
                raise _wrong(f"'{name}' is not in all stages, or has several types; choose a stage with --stage")
            if is_nested(kind):
                raise _wrong(f"'{name}' is a {kind}, and results can't be sorted by this type; sort by another field")
            by.append((name, kind, way.strip().lower() == _DESCENDING))
        return ResultOrder(tuple(by))

    def sorted(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """Yield the dead letters in their order, then the sorted results. Nulls are last, and equal results keep their order.
        All results are kept in memory."""
        held: list[tuple[DeskResult, dict[str, Any]]] = []
        for one in outcomes:
            if not isinstance(one, DeskResult):
                yield one
                continue
            document = json.loads(one.document.source)
            held.append((one, {name: typed_value(document.get(name), kind) for name, kind, _ in self.by}))
        for name, _, descends in reversed(self.by):
            present = [one for one in held if one[1][name] is not None]
            absent = [one for one in held if one[1][name] is None]
            present.sort(key=lambda one, name=name: one[1][name], reverse=descends)  # type: ignore[misc]
            held = present + absent
        yield from map(itemgetter(0), held)


def _wrong(message: str) -> InvalidDocument:
    return InvalidDocument([Problem(message, source="--sort")])
