"""Fields of a stream's schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from strandline.core.document_model import DocumentModel, shown
from strandline.core.document_values import PathTexts
from strandline.core.documents import Path, did_you_mean
from strandline.core.field_types import (
    ANY_TYPE,
    JSON_TYPE,
    TYPE_NAMES,
    TYPE_PATTERN,
    WHOLE_RANGES,
    is_nested,
    is_number,
    normal_type,
)
from strandline.core.times.durations import parse_time_ms
from strandline.core.times.time_patterns import read_pattern
from strandline.core.times.time_zones import zone_names

_TIME_LIMIT = re.compile(r"\d{4}-\d\d-\d\d(?:[T ][0-2]\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:\d\d))?", re.ASCII)
"""Form of a time that is read the same here and in records."""
MISSING_MAX = 50
"""Maximum number of markers of missing values in a field or a stream."""


def _marker(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f'{shown(value)} can\'t mark a missing value; expected a string or a number, as "?" or -9999')
    return value


Marker = Annotated[str | int | float, BeforeValidator(_marker)]
"""String or number that a sender writes if it has no value."""


def _limit(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"expected a number, or a time of a timestamp, got {shown(value)}")
    return value


Limit = Annotated[str | int | float, BeforeValidator(_limit)]
"""Minimum or maximum: a number, or a time in ISO 8601."""


def time_limit_ms(limit: str | float) -> int:
    """Return the minimum or maximum of a timestamp in milliseconds since 1970. Raises ValueError if it is neither a date, which
    begins in UTC, nor a time with a zone."""
    text = str(limit)
    try:
        if _TIME_LIMIT.fullmatch(text):
            return parse_time_ms(text)
    except ValueError:
        pass  # a day or an hour that doesn't exist
    raise ValueError(f"{shown(limit)} is not a time with a zone; expected 2020-01-01 or 2020-01-01T06:00:00Z")


class FieldSpec(DocumentModel):
    """One field of the schema. `double?` is short for `{type: double, required: false}`."""

    type: str = Field(json_schema_extra={"pattern": rf"^({TYPE_PATTERN}|{JSON_TYPE}|{ANY_TYPE})\??$"})
    """Type of the field: string, long, integer, double, boolean, timestamp, decimal(p,s), array<...>, or struct<...>. `any` is a
    string with a value of any type as it was written. `json` contains the members that have no other field."""
    required: bool = True
    """True if a record without the field, or with null, becomes a dead letter."""
    min: Limit | None = None
    """Minimum of the number, or of the time, as 2020-01-01 or 2020-01-01T06:00:00Z."""
    max: Limit | None = None
    """Maximum of the number, or of the time."""
    unit: Literal["s", "ms", "us", "ns"] | None = None
    """Unit of a timestamp that is a number (default ms). A string is read as ISO 8601 in any case."""
    tz: str | None = None
    """Time zone of a timestamp string that names none, as Europe/Berlin (default UTC)."""
    pattern: str | None = Field(default=None, min_length=1)
    """Pattern of a timestamp that isn't written in ISO 8601, as `d/M/yyyy HH:mm:ss`. `tz` is its zone."""
    source: PathTexts | None = Field(default=None, alias="from")
    """Path of the value in the record, as `$.sensors[0].t`. Default: the member with the field's name. For a timestamp, also a
    list of paths, as `[$.Date, $.Time]`. The strings are joined with a space."""
    text: bool = False
    """True if the value can also be a string, as `"23.5"`."""
    missing: list[Marker] = Field(default_factory=list, max_length=MISSING_MAX)
    """Values that mean that there is no value, as `["?", "Bad", -9999]`."""
    or_null: bool = False
    """True if a value of another type is read as null, and the record is accepted. Needs `required: false`."""

    @property
    def path(self) -> str | None:
        """Path of the value. None if it is the member with the field's name, or joined from several values."""
        return self.source if isinstance(self.source, str) else None

    @property
    def joined(self) -> list[str]:
        """Paths of the strings that are joined. Empty if the field has a single value."""
        return self.source if isinstance(self.source, list) else []

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        long_form = handler.resolve_ref_schema(super().__get_pydantic_json_schema__(core_schema, handler))
        return {"anyOf": [long_form["properties"]["type"], long_form]}

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, value: object) -> object:
        if isinstance(value, str):
            value = {"type": value}
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            return value
        value = dict(value)
        name, mark, rest = value["type"].strip().partition("?")
        if mark and not rest:
            if value.get("required") is True:
                raise ValueError(f"'{value['type']}' is optional and 'required: true' contradicts it; keep one")
            value["required"] = False
            value["type"] = name
        value["type"] = _normal_type(value["type"])
        if value["type"] == "timestamp":
            value.setdefault("unit", "ms")
        if value["type"] == JSON_TYPE:
            if value.get("required") is True:
                raise ValueError("the record could have only the declared members; remove 'required: true'")
            value["required"] = False
        return value

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        yield from self._contradictions_of_limits()
        if self.unit is not None and self.type != "timestamp":
            yield ("unit",), f"'unit' is for timestamps, and this is a {self.type}; remove it"
        if self.tz is not None and self.type != "timestamp":
            yield ("tz",), f"'tz' is for timestamps, and this is a {self.type}; remove it"
        elif self.tz is not None and self.tz not in zone_names():
            yield ("tz",), f"'{self.tz}' is not a time zone{did_you_mean(self.tz, zone_names())}"
        yield from self._contradictions_of_values()
        if self.text and is_nested(self.type):
            yield ("text",), f"{self.type} can't be a string; remove it"
        elif self.text and self.type in ("string", ANY_TYPE):
            yield (
                ("text",),
                f"{'a string is text' if self.type == 'string' else 'any accepts strings'} anyway; remove it",
            )
        if self.type == JSON_TYPE and (self.text or self.source is not None):
            yield ("type",), "json is for the members that have no other field; remove 'from' and 'text'"

    def _contradictions_of_limits(self) -> Iterator[tuple[Path, str]]:
        whole_range = WHOLE_RANGES.get(self.type)
        limits: dict[str, float] = {}
        for side, limit in (("min", self.min), ("max", self.max)):
            if limit is None:
                continue
            if self.type == "timestamp":
                try:
                    limits[side] = time_limit_ms(limit)
                except ValueError as error:
                    yield (side,), str(error)
            elif not is_number(self.type):
                yield (side,), f"'{side}' is for numbers and timestamps, and this is a {self.type}; remove it"
            elif isinstance(limit, str):
                yield (side,), f"expected a number, got {shown(limit)}"
            elif whole_range and (limit != int(limit) or not whole_range[0] <= limit <= whole_range[1]):
                yield (side,), f"'{side}' is {limit}, which is not a value of {self.type}"
            else:
                limits[side] = limit
        if len(limits) == 2 and limits["min"] > limits["max"]:
            yield ("min",), f"'min' {self.min} is greater than 'max' {self.max}; no record could pass"

    def _contradictions_of_values(self) -> Iterator[tuple[Path, str]]:
        """Yield contradictions about values that can replace a plain value of the type."""
        if self.pattern is not None and self.type != "timestamp":
            yield ("pattern",), f"'pattern' is for timestamps, and this is a {self.type}; remove it"
        elif self.pattern is not None:
            try:
                read_pattern(self.pattern)
            except ValueError as error:
                yield ("pattern",), f"{self.pattern!r} {error}"
        if isinstance(self.source, list) and (self.type != "timestamp" or len(self.source) < 2):
            yield ("from",), "a list of paths is for a timestamp that consists of at least two values; write one path"
        for name, is_given in (("missing", bool(self.missing)), ("or_null", self.or_null)):
            if is_given and (self.type == JSON_TYPE or is_nested(self.type)):
                yield (name,), f"'{name}' is for single values, and this is {self.type}; remove it"
        if self.or_null and self.required:
            yield ("or_null",), "a value of another type is null, and 'required' refuses null; add 'required: false'"
        if self.or_null and self.type == ANY_TYPE:
            yield ("or_null",), "any accepts a value of every type; remove it"


_TYPES_ELSEWHERE = {
    **dict.fromkeys(("int", "int32"), "integer"),
    **dict.fromkeys(("int64", "bigint"), "long"),
    **dict.fromkeys(("float", "float32", "float64", "real", "number"), "double"),
    **dict.fromkeys(("str", "text", "varchar", "char"), "string"),
    **dict.fromkeys(("bool",), "boolean"),
    **dict.fromkeys(("date", "datetime", "time"), "timestamp"),
}
"""Names of types in other programs -> ours, for messages."""


def _normal_type(text: str) -> str:
    if text in (JSON_TYPE, ANY_TYPE):
        return text
    try:
        found = normal_type(text)
    except ValueError as error:
        raise ValueError(f"'{text}': {error}") from None
    if found is None:
        meant = _TYPES_ELSEWHERE.get(text.lower())
        raise ValueError(
            f"'{text}' is not a type" + (f"; did you mean '{meant}'?" if meant else did_you_mean(text, TYPE_NAMES))
        )
    return found
