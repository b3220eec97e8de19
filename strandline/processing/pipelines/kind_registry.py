"""The kinds of steps: where each one is, and its parts, which are imported when they are first needed.

A kind is a folder of `processing/kinds`, or a package of somebody else with an entry point in the group `strandline.kinds`. Its
parts are modules, so a worker doesn't import the model of documents:

* `document`: `Fields`, a `DocumentModel` with the fields that the kind adds to a step of a document;
* `step`: the checked step, a `RowStep`;
* `plan`: `check(context, path, value)`, which ends the step in the check of a pipeline;
* `operator`: `operator_of(step, types)`, a `RowOperator`;
* `words`: `sentence(step)`, for the graph of a pipeline.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Literal

Part = Literal["document", "step", "plan", "operator", "words"]

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
}
"""Field of a step in a document -> kind."""
KINDS = tuple(dict.fromkeys(KEYWORDS.values()))


def module_of(kind: str, part: Part) -> str:
    """Return the name of the module that is a part of a kind."""
    return f"{_FOLDER}.{kind}.{part}"


def part_of(kind: str, part: Part) -> ModuleType:
    """Return a part of a kind."""
    return importlib.import_module(module_of(kind, part))
