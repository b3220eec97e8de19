"""The windows that a pipeline may have, as functions: `tumbling("1m")`, `sliding("60s", every="5s")`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from strandline.core.times.durations import format_duration

DurationLike = str | timedelta
"""`"1m30s"`, or a timedelta of whole milliseconds."""


@dataclass(frozen=True)
class Windows:
    """How event time is cut, as the fields of a document's `window` say it."""

    fields: Mapping[str, Any]


def tumbling(size: DurationLike, **more: object) -> Windows:
    """Windows that follow each other. `more`: other fields of the document's `window` that say where they begin."""
    return Windows({"tumbling": duration_text(size), **more})


def sliding(size: DurationLike, every: DurationLike, **more: object) -> Windows:
    """Windows of this size that overlap: one begins at each multiple of `every`."""
    return Windows({"sliding": {"size": duration_text(size), "every": duration_text(every)}, **more})


def cumulative(size: DurationLike, step: DurationLike, **more: object) -> Windows:
    """Windows that begin together at each multiple of `size`, and are one `step` longer each, up to `size`."""
    return Windows({"cumulative": {"size": duration_text(size), "step": duration_text(step)}, **more})


def session(gap: DurationLike, max: DurationLike | None = None, **more: object) -> Windows:  # the document's word
    """Windows that end when a key has no record for `gap`; none is longer than `max`."""
    longest = {} if max is None else {"max": duration_text(max)}
    return Windows({"session": {"gap": duration_text(gap), **longest}, **more})


def counted(size: int, max: DurationLike, **more: object) -> Windows:  # the document's word
    """Windows of `size` records of a key each; at each multiple of `max` counting begins anew."""
    return Windows({"count": {"size": size, "max": duration_text(max)}, **more})


def previous(within: DurationLike, **more: object) -> Windows:
    """Windows of one record and the record of the same key before it, if that is at most `within` earlier."""
    return Windows({"previous": {"within": duration_text(within)}, **more})


def duration_text(value: DurationLike) -> str:
    """The duration as documents have it. Raises ValueError for one that is no number of whole milliseconds."""
    if not isinstance(value, timedelta):
        return value  # whether it is a duration, the model says, with the step's place
    whole, rest = divmod(value, timedelta(milliseconds=1))
    if rest or whole < 0:
        raise ValueError(f"{value!r} is no duration: documents have whole milliseconds, from 0 on")
    return format_duration(whole)
