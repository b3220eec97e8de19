"""Types of values in documents: names, durations, and log positions, in their written and their parsed form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, JsonValue, PlainSerializer, WithJsonSchema

from strandline.core.document_model import shown
from strandline.core.documents import NAME, NAME_FORM
from strandline.core.json_paths import parse_json_path
from strandline.core.times.durations import (
    format_duration,
    format_place,
    format_retention,
    parse_duration_ms,
    parse_place,
    parse_retention_ms,
)

FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
FIELD_NAME_FORM = "letters, digits and '_', not a digit first, at most 200"
RESERVED_FIELDS = ("window", "strandline")
RESERVED_PREFIX = "_strandline"


def check_name(name: str) -> str:
    """Return `name`, or raise ValueError with the expected form. For streams, jobs, and emissions."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name; expected {NAME_FORM}")
    return name


def check_field_name(name: str) -> str:
    """Return `name`. Raise ValueError if it is no identifier, or if results and stages use it themselves."""
    if not FIELD_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a field name; expected {FIELD_NAME_FORM}")
    if name.lower() in RESERVED_FIELDS or name.lower().startswith(RESERVED_PREFIX):
        raise ValueError(f"'{name}' is reserved for Strandline's own fields; choose another name")
    return name


def names_alike(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each name that differs from an earlier name only in case, with the error message."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.lower(), name)) != name:
            yield name, f"'{other}' and '{name}' differ only in case, and Spark's SQL can't tell them apart"


Name = Annotated[str, BeforeValidator(check_name), WithJsonSchema({"type": "string", "pattern": f"^{NAME.pattern}$"})]
Duration = Annotated[
    int,
    BeforeValidator(parse_duration_ms),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d|w))+$", "examples": ["10s", "1h30m", "7d"]}),
]
"""Written as `10s`, parsed to integer milliseconds."""
Retention = Annotated[
    int,
    BeforeValidator(parse_retention_ms),
    PlainSerializer(format_retention, return_type=str),
    WithJsonSchema(
        {"type": "string", "pattern": "^(([0-9]+(ms|s|m|h|d|w))+|forever)$", "examples": ["7d", "52w", "forever"]}
    ),
]
"""Written as a duration or `forever`, parsed to integer milliseconds or FOREVER_MS."""
LogPlace = Annotated[
    Literal["earliest", "latest"] | int,
    BeforeValidator(parse_place),
    PlainSerializer(format_place, return_type=str),
    WithJsonSchema(
        {"type": "string", "pattern": "^(earliest|latest|[0-9]{4}-.*)$", "examples": ["earliest", "latest"]}
    ),
]
"""Position in a log: `earliest`, `latest`, or a log time. A log time is written in ISO 8601 and parsed to integer milliseconds.
"""


def _number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {shown(value)}")
    return value


Number = Annotated[int | float, BeforeValidator(_number)]
FieldName = Annotated[str, BeforeValidator(check_field_name)]
FIELD_NAMES_SCHEMA: dict[str, JsonValue] = {"propertyNames": {"pattern": f"^{FIELD_NAME.pattern}$"}}
"""For the JSON Schema of a mapping whose keys are field names."""


def check_json_path(text: object) -> object:
    """Return `text`. Raises ValueError if it is a string but not a path."""
    if isinstance(text, str):
        parse_json_path(text)
    return text


def check_json_paths(value: object) -> object:
    """Return `value`. Raises ValueError if it is neither a path nor a list of paths."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        for one in value:
            parse_json_path(one)
    elif not isinstance(value, str):
        raise ValueError(f"expected a path, as '$.temp', or a list of paths, got {shown(value)}")
    return check_json_path(value)


_PATH_SCHEMA: dict[str, JsonValue] = {"type": "string", "pattern": r"^\$"}
PathText = Annotated[str, BeforeValidator(check_json_path), WithJsonSchema(_PATH_SCHEMA)]
"""Path in the form that `core.json_paths` reads."""
PathTexts = Annotated[
    str | list[str],
    BeforeValidator(check_json_paths),
    WithJsonSchema({"anyOf": [_PATH_SCHEMA, {"type": "array", "items": _PATH_SCHEMA}]}),
]
"""One path, or several."""
