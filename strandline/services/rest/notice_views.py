"""Answers of the API about notices."""

from __future__ import annotations

from typing import Any

from strandline.ledger.notices import MessageRow, ProblemRow
from strandline.services.rest.views import View


class NoticeSummary(View):
    """A notice in a list."""

    name: str
    version: int
    conditions: list[str]
    channels: list[str]
    open_problems: int
    """Number of problems that are not over."""
    unsent_messages: int
    """Number of messages that no receiver has confirmed yet."""
    failing: str
    """Why the last attempt of an unsent message failed; empty if none did."""
    muted_until_ms: int | None
    """Time until which messages are held back; null if they aren't."""


class NoticeList(View):
    notices: list[NoticeSummary]


class NoticeView(NoticeSummary):
    """A notice, its problems and its messages."""

    document: dict[str, Any]
    applied_ms: int
    muted_by: str | None
    problems: list[ProblemRow]
    """The newest problems, the oldest first."""
    messages: list[MessageRow]
    """The newest messages, the oldest first."""


class NoticeTestView(View):
    notice: str
    messages: list[int]
    """Numbers of the messages, one for each channel."""


class DeletedNoticeView(View):
    notice: str
