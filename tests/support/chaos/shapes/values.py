"""Values of JSON and of fields, read by the text of docs/stream-document.md and docs/formats.md, one at a time.

Imports nothing of Strandline, and nothing that is fast.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

BOM = b"\xef\xbb\xbf"
ABSENT: Any = object()
"""In place of a value that a record doesn't have."""
INTEGER_MAX = 2**53
"""Maximum of an integer that is written with a fraction or an exponent."""
_NAN = re.compile(rb"(?<=[:\[,])nan(?=[,}\]])")
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})?")


class Unreadable(ValueError):
    """The record isn't JSON, or has a name twice."""


class Unfit(ValueError):
    """A value isn't as the schema says, or a record doesn't have the shape."""


@dataclass(frozen=True)
class Number:
    """A number as it was written."""

    text: str

    @property
    def exact(self) -> Decimal:
        return Decimal(self.text)


def parse(value: bytes, *, reads_nan: bool = False) -> Any:
    """Return the JSON in these bytes, numbers as they were written. Raises Unreadable.

    `reads_nan`: whether the word `nan` is a value, as null.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise Unreadable("a name occurs twice")
        return found

    def refuse(word: str) -> Any:
        raise Unreadable(f"{word} is not JSON")

    text = _NAN.sub(b"null", value) if reads_nan else value
    try:
        return json.loads(
            text.removeprefix(BOM).decode(),
            object_pairs_hook=once,
            parse_int=Number,
            parse_float=Number,
            parse_constant=refuse,
        )
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from error


def written(value: Any) -> str:
    """Return the compact JSON text of a value that was parsed."""
    if isinstance(value, Number):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{written(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Field:
    """A field of a schema."""

    name: str
    type: str
    required: bool = True
    missing: tuple[str | int, ...] = ()
    or_null: bool = False
    text: bool = False
    unit_ms: int = 1
    """Unit of a time that is a number."""
    pattern: str = ""
    """Pattern of a time for `datetime.strptime`. Empty for ISO 8601."""
    tz: str = "UTC"

    def read(self, value: Any) -> Any:
        """Return the value, or None if there is none. Raises Unfit."""
        if value is ABSENT or value is None or self._is_marker(value):
            found = None
        else:
            try:
                found = self._READERS[self.type](self, value)
            except Unfit:
                if not self.or_null:
                    raise
                found = None
        if found is None and self.required:
            raise Unfit(f"{self.name} is missing")
        return found

    def _is_marker(self, value: Any) -> bool:
        for marker in self.missing:
            if isinstance(marker, str):
                if isinstance(value, str) and value.lower() == marker.lower():
                    return True
            elif _number_of(value) == marker:
                return True
        return False

    def _string(self, value: Any) -> str:
        if not isinstance(value, str):
            raise Unfit(f"{self.name} is no string")
        return value

    def _any(self, value: Any) -> str:
        return value if isinstance(value, str) else written(value)

    def _double(self, value: Any) -> float:
        return float(self._number(value).text)

    def _long(self, value: Any) -> int:
        number = self._number(value)
        if re.fullmatch(r"-?\d+", number.text):
            return int(number.text)
        if number.exact % 1 or abs(number.exact) > INTEGER_MAX:
            raise Unfit(f"{self.name} is no integer")
        return int(number.exact)

    def _number(self, value: Any) -> Number:
        if self.text and isinstance(value, str) and _number_of(value) is not None:
            return Number(value)
        if not isinstance(value, Number):
            raise Unfit(f"{self.name} is no number")
        return value

    def _timestamp(self, value: Any) -> int:
        if isinstance(value, Number) or (self.text and isinstance(value, str) and _number_of(value) is not None):
            return int(self._number(value).exact * self.unit_ms)
        text = self._string(value)
        try:
            if self.pattern:
                moment = datetime.strptime(text, self.pattern).replace(tzinfo=ZoneInfo(self.tz))
            elif _ISO.fullmatch(text):
                moment = datetime.fromisoformat(text)
                moment = moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(self.tz))
            else:
                raise Unfit(f"{self.name} is no time")
        except ValueError as error:
            raise Unfit(f"{self.name} is no time: {error}") from error
        return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)

    _READERS: ClassVar[dict[str, Any]] = {
        "string": _string,
        "any": _any,
        "double": _double,
        "long": _long,
        "timestamp": _timestamp,
    }


def _number_of(value: Any) -> Decimal | None:
    """Return the number that is, or is in, this value. None if there is none."""
    text = value.text if isinstance(value, Number) else value if isinstance(value, str) else ""
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def try_double(text: str | None) -> float | None:
    """Return the number in a string, as `try_cast(x as double)`. None if there is none."""
    return None if text is None or _number_of(text) is None else float(text)


def member(value: Any, *steps: str) -> Any:
    """Return the value at the path of names. ABSENT if the path doesn't exist."""
    for step in steps:
        if not isinstance(value, dict) or step not in value:
            return ABSENT
        value = value[step]
    return value


def first_of(*values: Any) -> Any:
    """Return the first value that isn't absent: that of the element before that of the record."""
    return next((one for one in values if one is not ABSENT), ABSENT)


def rows_of(fields: Sequence[Field], raws: Sequence[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield the index and the values of each row. None if a value doesn't fit. `raws`: name of a field -> its value."""
    for at, raw in enumerate(raws):
        try:
            yield at, {field.name: field.read(raw.get(field.name, ABSENT)) for field in fields}
        except Unfit:
            yield at, None
