"""Durations (`10s`, `1m`, `1h30m`, `7d`, `250ms`), times (ISO 8601, UTC by default), and log positions, as people write them.

They are parsed to integer milliseconds, times since 1970 UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_WHOLE = re.compile(r"(?:\d+(?:ms|s|m|h|d|w))+")
_PART = re.compile(r"(\d+)(ms|s|m|h|d|w)")
DURATION_MS_MAX = 3_660 * 86_400_000
"""Ten years. A longer duration has a wrong unit."""
TIME_MS_MAX = 253_402_300_799_999
"""End of the year 9999. Later times can't be written."""
FOREVER_MS = -1
"""Retention without a limit, as Kafka writes it."""
_FOREVER = "forever"


def parse_duration_ms(text: str) -> int:
    """Return the duration in milliseconds. Raises ValueError, with the expected form, for other strings."""
    if not isinstance(text, str) or not _WHOLE.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a duration; write a number and a unit, such as 250ms, 10s, 1m, 1h30m, 7d")
    total_ms = sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))
    if total_ms > DURATION_MS_MAX:
        raise ValueError(f"{text!r} is longer than ten years; is the unit right?")
    return total_ms


def format_duration(duration_ms: int) -> str:
    """Return the shortest string that `parse_duration_ms` reads as the same number (`0s` for zero)."""
    if duration_ms == 0:
        return "0s"
    parts = []
    for unit in ("w", "d", "h", "m", "s", "ms"):
        count, duration_ms = divmod(duration_ms, _UNITS_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def parse_retention_ms(text: str) -> int:
    """Return a duration in milliseconds; FOREVER_MS for `forever`. Raises ValueError as `parse_duration_ms`."""
    if text == _FOREVER:
        return FOREVER_MS
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise ValueError(f"{error} (or {_FOREVER})") from None


def format_retention(retention_ms: int) -> str:
    """Return the string that `parse_retention_ms` reads as the same number."""
    return _FOREVER if retention_ms == FOREVER_MS else format_duration(retention_ms)


def format_windows(size_ms: int, every_ms: int) -> str:
    """Return the size of windows, and for sliding windows the distance between their starts: `1m`, `1m every 5s`."""
    size = format_duration(size_ms)
    return size if size_ms == every_ms else f"{size} every {format_duration(every_ms)}"


def format_about(duration_ms: int) -> str:
    """Return a duration for people, truncated to the largest unit that counts at least two: `47h`."""
    units_ms = (86_400_000, 3_600_000, 60_000)
    unit_ms = next((unit_ms for unit_ms in units_ms if duration_ms >= 2 * unit_ms), 1_000)
    return format_duration(duration_ms // unit_ms * unit_ms)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def parse_time_ms(text: str) -> int:
    """Return a time in milliseconds since 1970. Raises ValueError, with the expected form, if it isn't a time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a time; write 2026-11-21T10:00:00Z") from error
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND


def parse_place(value: object) -> str | int:
    """Return a position in a log: `earliest`, `latest`, or a log time. Raises ValueError for other values."""
    if value in ("earliest", "latest"):
        return str(value)
    try:
        if isinstance(value, str) and (found := parse_time_ms(value)) >= 0:
            return found
    except ValueError:
        pass
    raise ValueError(f"{value!r} is not a log position; write earliest, latest, or a time such as 2026-11-21T10:00:00Z")


def format_place(place: str | int) -> str:
    """Return the string that `parse_place` reads as the same position."""
    if isinstance(place, str):
        return place
    shown = (_EPOCH + place * _MILLISECOND).isoformat(timespec="milliseconds")
    return shown.replace("+00:00", "Z").replace(".000Z", "Z")
