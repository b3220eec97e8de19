"""Responses of the API about notices."""

from __future__ import annotations

from strandline.services.jobs.notices import NoticeSummary
from strandline.services.rest.views import View


class NoticeList(View):
    notices: list[NoticeSummary]


class NoticeTestView(View):
    notice: str
    messages: list[int]
    """Numbers of the messages, one for each channel."""


class DeletedNoticeView(View):
    notice: str
