"""Results in an order that was asked for. Only at the desk: an index, a table and a stream have no order of their own."""

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
    """By which fields results are sorted, the most important first, and how."""

    by: tuple[tuple[str, str, bool], ...]
    """(field, type, whether the greatest comes first)."""

    @staticmethod
    def of(texts: Sequence[str], stages: Sequence[AnyStage]) -> ResultOrder:
        """Each text is a field that all of these stages have in one type, with `desc` behind it for the other order; or
        `@timestamp`. Raises InvalidDocument."""
        by = []
        for text in texts:
            name, _, way = text.strip().partition(" ")
            kinds = {_TIME: "timestamp"}
            for stage in stages:
                kinds |= stage.field_types
            found = {stage.field_types.get(name) for stage in stages} if name != _TIME else {"timestamp"}
            kind = kinds.get(name, "")
            if way.strip().lower() not in ("", "asc", _DESCENDING):
                raise _wrong(f"{text!r} is no order; write a field, or a field and desc")
            if name not in kinds:
                raise _wrong(f"'{name}' is no field of the results{did_you_mean(name, kinds)}")
            if found != {kind}:
                raise _wrong(f"'{name}' is not in all stages, or not of one type; choose a stage with --stage")
            if is_nested(kind):
                raise _wrong(f"'{name}' is a {kind}, which has no order")
            by.append((name, kind, way.strip().lower() == _DESCENDING))
        return ResultOrder(tuple(by))

    def sorted(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """The dead letters as they come; then the results in order, nulls last, equal ones as they came. All are held at once."""
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
