"""The kinds of steps: where each one is, and its parts, which are imported when they are first needed.

A kind is a folder of `processing/kinds`, or a folder of an installed package with an entry point of the group `strandline.kinds`.
Its parts are modules, so a worker doesn't import the model of documents:

* `document`: `Fields`, a `DocumentModel` with the fields that the kind adds to a step. For windows `WindowFields`, which it adds
  to the field `window`.
* `step`: the checked step, a `RowStep` or a `Stage`. For windows `shape`: a `WindowShape`.
* `plan`: `check(context, path, value)`, which ends the step in the check of a pipeline. For windows `PLAN`, a `WindowPlan`.
* `operator`: `operator_of(step, types)`, which returns a `RowOperator`, or the `WindowOperator` of a stage.
* `audit`, for stages: `query_of(stage, side, types, position_types)`, which returns a `StageQuery`.
* `words`: `describe(step)`, for the graph of a pipeline. For stages `WORDS`, a `StageWords`.

`page.md` in the folder is the page of the docs.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Literal

from strandline.core.errors import FunctionUnusable
from strandline.core.packages import PackagePart, parts_of_packages

Part = Literal["document", "step", "plan", "operator", "audit", "words"]

_FOLDER = "strandline.processing.kinds"
KEYWORDS = {
    "derive": "derive",
    "where": "where",
    "map": "map_rows",
    "select": "select",
    "drop": "select",
    "enrich": "enrich",
    "dedupe": "dedupe",
    "distinct": "dedupe",
    "window": "windows",
    "join": "join",
}
"""Field of a step -> kind."""
STAGE_KEYWORDS = ("window", "join")
"""Fields of a step that make a stage. Steps with other fields process rows one by one."""
WINDOW_KEYWORDS = {
    "tumbling": "windows",
    "sliding": "windows",
    "cumulative": "cumulative",
    "session": "session",
    "count": "count",
    "previous": "previous",
}
"""Field of `window` -> kind."""
_KINDS_IN_TIME_ZONE = ("days", "cumulative_days")
"""Kinds of windows that a document selects by `tz`, next to the field of another kind."""
STAGE_KINDS = (*dict.fromkeys(WINDOW_KEYWORDS.values()), *_KINDS_IN_TIME_ZONE, "join")
ROW_KINDS = tuple(dict.fromkeys(kind for keyword, kind in KEYWORDS.items() if keyword not in STAGE_KEYWORDS))


GROUP = "strandline.kinds"
"""Group of the entry points. The name of an entry point is the field of a step or of `window`, and the kind."""
_OWN_NAMES = frozenset(
    {*KEYWORDS, *WINDOW_KEYWORDS, *ROW_KINDS, *STAGE_KINDS, "emit", "name", "from", "source"}
    | {"offset", "tz", "by", "aggregate"}
)
"""Names that no kind of a package can have."""


def package_kinds() -> Mapping[str, PackagePart]:
    """Return name -> kind, of all installed packages."""
    return parts_of_packages(GROUP, "kind", _OWN_NAMES)


def package_of(kind: str) -> str:
    """Return the package of a kind, with its release. Empty for a kind of Strandline."""
    part = None if kind in _OWN_NAMES else package_kinds().get(kind)
    return "" if part is None else part.package


def kind_of(keyword: str) -> str:
    """Return the kind of the steps that have this field."""
    return KEYWORDS.get(keyword, keyword)


def window_kind_of(keyword: str) -> str:
    """Return the kind of the windows that have this field."""
    return WINDOW_KEYWORDS.get(keyword, keyword)


def module_of(kind: str, part: Part) -> str:
    """Return the name of the module that is a part of a kind of Strandline."""
    return f"{_FOLDER}.{kind}.{part}"


def part_of(kind: str, part: Part, package: str | None = None) -> ModuleType:
    """Return a part of a kind.

    Args:
        package: The package that the kind must be of, with its release, and empty for a kind of Strandline. None if it can be of
            any.

    Raises FunctionUnusable if the package of the kind is missing, can't be used, or is another one.
    """
    if package is not None and package != (here := package_of(kind)):
        raise FunctionUnusable(
            f"the kind {kind} belongs to {here or 'no package'} here, but to {package or 'no package'} where the job was "
            "started; install the same package everywhere, and restart the job"
        )
    if kind in _OWN_NAMES:
        return importlib.import_module(module_of(kind, part))
    if (added := package_kinds().get(kind)) is None:
        raise FunctionUnusable(f"no installed package has the kind {kind}; install the package of this kind again")
    return added.load_module(part)
