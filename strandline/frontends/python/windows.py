"""Windows of a pipeline as functions: `tumbling("1m")`, `sliding("60s", every="5s")`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from strandline.core.times.durations import format_duration

DurationLike = str | timedelta
"""`"1m30s"`, or a timedelta of integer milliseconds."""


@dataclass(frozen=True)
class Windows:
    """Windows, as the fields of a document's `window`."""

    fields: Mapping[str, Any]


def tumbling(size: DurationLike, **more: object) -> Windows:
    """Windows that follow each other. `more`: other fields of the document's `window`, which determine their start."""
    return Windows({"tumbling": duration_text(size), **more})


def sliding(size: DurationLike, every: DurationLike, **more: object) -> Windows:
    """Windows of this size that overlap. One begins at each multiple of `every`."""
    return Windows({"sliding": {"size": duration_text(size), "every": duration_text(every)}, **more})


def cumulative(size: DurationLike, step: DurationLike, **more: object) -> Windows:
    """Windows that begin together at each multiple of `size`. Each is one `step` longer than the one before, up to `size`."""
    return Windows({"cumulative": {"size": duration_text(size), "step": duration_text(step)}, **more})


def session(
    gap: DurationLike, max: DurationLike | None = None, **more: object
) -> Windows:  # the field name of the document
    """Windows that end if a key has no record for `gap`, and are at most `max` long."""
    longest = {} if max is None else {"max": duration_text(max)}
    return Windows({"session": {"gap": duration_text(gap), **longest}, **more})


def counted(size: int, max: DurationLike, **more: object) -> Windows:  # the field name of the document
    """Windows of `size` records of a key each. The count restarts at each multiple of `max`."""
    return Windows({"count": {"size": size, "max": duration_text(max)}, **more})


def previous(within: DurationLike, **more: object) -> Windows:
    """Windows of a record and the previous record of the same key, if that is at most `within` earlier."""
    return Windows({"previous": {"within": duration_text(within)}, **more})


def duration_text(value: DurationLike) -> str:
    """Return the duration as in documents. Raises ValueError if it isn't an integer number of milliseconds."""
    if not isinstance(value, timedelta):
        return value  # the model checks the duration and reports the position of the step
    whole, rest = divmod(value, timedelta(milliseconds=1))
    if rest or whole < 0:
        raise ValueError(f"{value!r} is not a duration; documents accept integer milliseconds from 0")
    return format_duration(whole)
