"""Places of a log as people write them: `earliest`, `latest`, or a log time in ISO 8601, UTC unless it says. A time is kept as
whole milliseconds since 1970 UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def parse_time_ms(text: str) -> int:
    """Return a time in milliseconds since 1970. Raises ValueError, with the expected form, for what is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no time; write 2026-11-21T10:00:00Z") from error
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND


def format_place(place: str | int) -> str:
    """Return the text that `parse_place` reads back as the same place."""
    if isinstance(place, str):
        return place
    shown = (_EPOCH + place * _MILLISECOND).isoformat(timespec="milliseconds")
    return shown.replace("+00:00", "Z").replace(".000Z", "Z")


def parse_place(value: object) -> str | int:
    """Return a place. Raises ValueError for what is none."""
    if value in ("earliest", "latest"):
        return str(value)
    try:
        if isinstance(value, str) and (found := parse_time_ms(value)) >= 0:
            return found
    except ValueError:
        pass
    raise ValueError(f"{value!r} is no place of a log; write earliest, latest, or a time as 2026-11-21T10:00:00Z")


LogPlace = Annotated[
    Literal["earliest", "latest"] | int,
    BeforeValidator(parse_place),
    PlainSerializer(format_place, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^(earliest|latest|\d{4}-.*)$", "examples": ["earliest", "latest"]}),
]
"""Written as `earliest`, `latest` or ISO 8601."""
