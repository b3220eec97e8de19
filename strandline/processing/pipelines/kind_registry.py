"""The kinds of steps: where each one is, and its parts, which are imported when they are first needed.

A kind is a folder of `processing/kinds`, or a package of somebody else with an entry point in the group `strandline.kinds`. Its
parts are modules, so a worker doesn't import the model of documents:

* `document`: `Fields`, a `DocumentModel` with the fields that the kind adds to a step; of windows `WindowFields`, which it adds
  to the field `window`;
* `step`: the checked step, a `RowStep` or a `Stage`; of windows `shape`: a `WindowShape`;
* `plan`: `check(context, path, value)`, which ends the step in the check of a pipeline; of windows `PLAN`, a `WindowPlan`;
* `operator`: `operator_of(step, types)`, a `RowOperator`, or a `WindowOperator` of a stage;
* `audit`, of stages: `query_of(stage, side, types, place_types)`, a `StageQuery`;
* `words`: `sentence(step)`, for the graph of a pipeline; of stages `WORDS`, a `StageWords`.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Literal

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
"""Those fields of a step that make a stage. The others take rows one by one."""
WINDOW_KEYWORDS = {
    "tumbling": "windows",
    "sliding": "windows",
    "cumulative": "cumulative",
    "session": "session",
    "count": "count",
}
"""Field of `window` -> kind."""
STAGE_KINDS = ("windows", "days", "cumulative", "cumulative_days", "session", "count", "join")
ROW_KINDS = tuple(dict.fromkeys(kind for keyword, kind in KEYWORDS.items() if keyword not in STAGE_KEYWORDS))


def kind_of(keyword: str) -> str:
    """Return the kind of the steps that have this field."""
    return KEYWORDS[keyword]


def module_of(kind: str, part: Part) -> str:
    """Return the name of the module that is a part of a kind."""
    return f"{_FOLDER}.{kind}.{part}"


def part_of(kind: str, part: Part) -> ModuleType:
    """Return a part of a kind."""
    return importlib.import_module(module_of(kind, part))
