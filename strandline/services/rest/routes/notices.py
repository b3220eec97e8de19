"""Notices: their registration, their problems and messages, tests, and muting."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from strandline.services.jobs import notices
from strandline.services.jobs.notices import NoticeView, notice_summaries, notice_view
from strandline.services.rest.dependencies import INTEGER_MAX, Caller, Control
from strandline.services.rest.notice_views import DeletedNoticeView, NoticeList, NoticeTestView

router = APIRouter(tags=["notices"])


@router.get("/v1/notices")
def list_notices(control: Control) -> NoticeList:
    """Return all notices, by name."""
    return NoticeList(notices=notice_summaries(control.ledger))


@router.get("/v1/notices/{name}")
def show_notice(control: Control, name: str) -> NoticeView:
    """Return one notice: its document, its problems, and its newest messages."""
    return notice_view(control.ledger, name)


@router.post("/v1/notices/{name}/test")
def send_test_message(control: Control, name: str) -> NoticeTestView:
    """Send a test message to each channel of a notice. The response contains the numbers of the messages; the notice
    shows whether they were confirmed.
    """
    made = notices.send_test_messages(control.ledger, name)
    control.notices.wake()
    return NoticeTestView(notice=name, messages=made)


@router.post("/v1/notices/{name}/mute")
def mute_notice(
    control: Control,
    caller: Caller,
    name: str,
    until_ms: Annotated[
        int | None,
        Query(ge=0, le=INTEGER_MAX, description="Time until which messages are held back; without it, muting ends"),
    ] = None,
) -> NoticeView:
    """Hold back the messages of a notice until a time. New problems in the meantime are reported, joined, at its end."""
    notices.mute_notice(control.ledger, name, until_ms, caller)
    control.notices.wake()
    return notice_view(control.ledger, name)


@router.delete("/v1/notices/{name}")
def delete_notice(control: Control, caller: Caller, name: str) -> DeletedNoticeView:
    """Delete a notice, its problems, and its messages, also messages that are not sent yet."""
    notices.delete_notice(control.ledger, name, caller)
    return DeletedNoticeView(notice=name)
