"""The `notice:` document: watched conditions, recipients, and the frequency of messages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import Duration, Name
from strandline.core.documents import Path, did_you_mean
from strandline.core.times.durations import format_duration
from strandline.core.times.time_zones import rules_of
from strandline.notices.channels.table import CHANNELS, channel_of
from strandline.notices.conditions.table import CONDITIONS, condition_of
from strandline.notices.machine import GroupBy, Rules

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MIN = 1_440
# A model has the fields of its last base first.
_FIELDS_OF_CONDITIONS = tuple(condition_of(keyword).Fields for keyword in reversed(CONDITIONS))
_FIELDS_OF_CHANNELS = tuple(channel_of(keyword).Fields for keyword in reversed(CHANNELS))


class _OneOf(DocumentModel):
    """A mapping with exactly one keyword."""

    WHAT: ClassVar[str]

    @property
    def keyword(self) -> str:
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)

    @property
    def options(self) -> Any:
        return getattr(self, self.keyword)

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"has {' and '.join(given)}" if given else "has none"
            yield (), f"a {self.WHAT} must be exactly one of {', '.join(type(self).model_fields)}; this one {found}"


class ConditionSpec(*_FIELDS_OF_CONDITIONS, _OneOf):  # type: ignore[misc]  # one class for each condition
    """One condition."""

    WHAT: ClassVar[str] = "condition"

    @model_validator(mode="before")
    @classmethod
    def _word(cls, value: object) -> object:
        """Accept a word as a condition without options."""
        if not isinstance(value, str):
            return value
        if value not in CONDITIONS:
            raise ValueError(f"there is no condition '{value}'{did_you_mean(value, CONDITIONS)}")
        return {value: {}}


class ChannelSpec(*_FIELDS_OF_CHANNELS, _OneOf):  # type: ignore[misc]  # one class for each channel
    """One channel."""

    WHAT: ClassVar[str] = "channel"


def _minutes(value: object) -> int:
    try:
        hours, minutes = map(int, str(value).split(":"))
        if not (0 <= hours <= 24 and 0 <= minutes < 60 and hours * 60 + minutes <= _DAY_MIN):
            raise ValueError
    except ValueError:
        raise ValueError(f"{value!r} is not a time of day; write '22:00', in quotes") from None
    return hours * 60 + minutes


def _time_of_day(value: object) -> object:
    _minutes(value)
    return value


TimeOfDay = Annotated[str, BeforeValidator(_time_of_day)]


class QuietSpec(DocumentModel):
    """Times of day in which messages are held back. They are sent, joined, at the end."""

    start: TimeOfDay = Field(alias="from")
    """Time of day, as `"22:00"`."""
    to: TimeOfDay
    """Time of day. If it is before `from`, it is on the next day."""
    zone: str = "UTC"
    """Time zone, as `Europe/Berlin`."""
    days: list[Day] = Field(default_factory=lambda: [*DAYS], min_length=1)
    """Days on which the quiet time begins."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        try:
            rules_of(self.zone)
        except ValueError as error:
            yield ("zone",), str(error)
        if _minutes(self.start) == _minutes(self.to):
            yield (
                ("to",),
                "is the same as 'from'; to hold back all messages for a time, run: strandline notice mute NAME",
            )

    def holds(self, now_ms: int) -> bool:
        """Return True if it is quiet at this time."""
        now = datetime.fromtimestamp(now_ms / 1_000, UTC).astimezone(rules_of(self.zone))
        minute, start, end = now.hour * 60 + now.minute, _minutes(self.start), _minutes(self.to)
        if start < end:
            return DAYS[now.weekday()] in self.days and start <= minute < end
        if minute >= start:
            return DAYS[now.weekday()] in self.days
        return minute < end and DAYS[(now - timedelta(days=1)).weekday()] in self.days


class GroupSpec(DocumentModel):
    """Rules by which problems share a message."""

    by: GroupBy = "condition"
    """`condition`: problems of one condition share a message; `job`: problems of one job; `notice`: all; `problem`: none."""
    wait: Duration = Field(default=10_000, json_schema_extra={"default": "10s"})
    """Time for which a new problem waits for others."""
    every: Duration = Field(default=60_000, json_schema_extra={"default": "1m"})
    """Minimum time between two messages about new problems of one group."""


class NoticeSpec(DocumentModel):
    """Conditions to watch, and channels through which people are notified."""

    NOT_SUPPORTED: ClassVar[dict[str, str]] = {
        "mute": "a notice is muted by a command, not by its document: strandline notice mute NAME --for 2h",
    }
    notice: Name
    """Name of the notice."""
    when: list[ConditionSpec] = Field(min_length=1, max_length=50)
    """Conditions: a word, as `job_failed`, or `{NAME: {OPTION: ...}}`."""
    to: list[ChannelSpec] = Field(min_length=1, max_length=20)
    """Channels. Each receives every message."""
    jobs: list[str] = Field(default_factory=lambda: ["*"], min_length=1, max_length=200)
    """Names of the watched jobs; `*` matches any characters."""
    group: GroupSpec = Field(default_factory=GroupSpec)
    """Rules by which problems share a message."""
    cooldown: Duration = Field(default=600_000, json_schema_extra={"default": "10m"})
    """Minimum time between two messages about new problems of one subject, for example a job. New problems in between are
    reported in one message at the end."""
    remind_after: Duration | None = None
    """Time after which one reminder of an open problem is sent. Default: never."""
    resolved: bool = True
    """True if a message reports that problems are over."""
    limit: int = Field(default=10, ge=1, le=1_000)
    """Maximum number of messages to each channel within a minute. One summary replaces the others."""
    quiet: list[QuietSpec] = Field(default_factory=list, max_length=20)
    """Times of day in which messages are held back."""
    about: str = Field(default="", max_length=2_000)
    """Text at the end of each message, for example the link to a runbook."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        if not 0 <= self.group.wait <= 3_600_000:
            yield ("group", "wait"), f"is {format_duration(self.group.wait)}; expected up to 1h"
        for number, pattern in enumerate(self.jobs):
            if not pattern or any(character.isspace() for character in pattern):
                yield ("jobs", number), f"{pattern!r} is not a name of a job, for example 'turbine-*'"

    @property
    def labels(self) -> list[str]:
        """Names of the conditions, in the order of the document: a keyword that occurs again has a number."""
        return _labels([one.keyword for one in self.when])

    @property
    def channels(self) -> dict[str, ChannelSpec]:
        """Name -> channel. Names have the same form as those of conditions."""
        return dict(zip(_labels([one.keyword for one in self.to]), self.to, strict=True))

    @property
    def rules(self) -> Rules:
        return Rules(
            notice=self.notice,
            channels=tuple(self.channels),
            group_by=self.group.by,
            wait_ms=self.group.wait,
            every_ms=self.group.every,
            cooldown_ms=self.cooldown,
            remind_after_ms=self.remind_after,
            reports_end=self.resolved,
        )

    def is_quiet(self, now_ms: int) -> bool:
        """Return True if messages are held back at this time."""
        return any(one.holds(now_ms) for one in self.quiet)


def _labels(keywords: list[str]) -> list[str]:
    return [
        keyword if (before := keywords[:at].count(keyword)) == 0 else f"{keyword} {before + 1}"
        for at, keyword in enumerate(keywords)
    ]
