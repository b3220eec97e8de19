"""Events: in pages, or as server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from strandline.core.errors import LedgerUnavailable, TransientError
from strandline.ledger.roles import LedgerReader
from strandline.ledger.states import EventRow, FollowedEvents
from strandline.services.rest.dependencies import INTEGER_MAX, Control
from strandline.services.rest.event_watch import EventWatch
from strandline.services.rest.views import EventList

router = APIRouter(tags=["jobs"])

MEDIA_TYPE = "text/event-stream"
FOLLOWERS_MAX = 200
FOLLOWED_S = 300.0
"""Seconds after which a stream of events ends. The client connects again automatically, so that a revoked token is
refused.
"""
_LOOK_S = 1.0
_SAY_S = 15.0
"""Seconds between lines. A proxy would close a connection without traffic."""
_AT_ONCE = 1_000
_following: set[object] = set()

Limit = Annotated[int, Query(ge=1, le=1000)]
After = Annotated[int | None, Query(ge=0, le=INTEGER_MAX)]


@router.get("/v1/events", response_model=EventList, responses={200: {"content": {MEDIA_TYPE: {}}}})
def list_events(
    request: Request,
    control: Control,
    job: str | None = None,
    after: After = None,
    limit: Limit = 100,
    last: Annotated[
        int | None, Query(ge=1, le=1000, description="Number of newest events; `limit` is ignored.")
    ] = None,
    last_event_id: Annotated[int | None, Header(ge=0, le=INTEGER_MAX)] = None,
) -> EventList | StreamingResponse:
    """Return events, the oldest first. For the events that follow, pass the last id as `after`.

    A client that accepts `text/event-stream` gets new events, or those after `after` or the header `Last-Event-ID`, as
    they happen.
    """
    if job is not None:
        control.ledger.job(job)
    if MEDIA_TYPE in request.headers.get("accept", ""):
        if len(_following) >= FOLLOWERS_MAX:
            raise TransientError(f"{FOLLOWERS_MAX} clients already follow events; try again later")
        behind = after if last_event_id is None else last_event_id
        frames = event_frames(control.ledger, control.event_watch, job, behind, request.app.state.is_ending, FOLLOWED_S)
        return StreamingResponse(frames, media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store"})
    if last is not None:
        return EventList(events=control.ledger.events(job, after or 0, last, newest=True))
    rows = control.ledger.events(job, after or 0, limit)
    about = f"&job={job}" if job else ""
    following = f"/v1/events?after={rows[-1].id}&limit={limit}{about}" if len(rows) == limit else None
    return EventList(events=rows, next=following)


async def event_frames(
    ledger: LedgerReader,
    watch: EventWatch,
    job: str | None,
    after: int | None,
    is_ending: Callable[[], bool],
    followed_s: float,
) -> AsyncIterator[str]:
    """Yield the events after the number `after`, each once, as they happen.

    While the ledger is down, nothing is yielded, and no event is lost. Ends after `followed_s`, or if the service
    stops.
    Args: watch: Looks for new events, for all followers. The ledger is queried for this one only after a change.
        after: None means new events only.
    """
    me = object()
    _following.add(me)
    begun_s = said_s = time.monotonic()
    followed = None if after is None else FollowedEvents(after)
    change = None
    try:
        yield "retry: 3000\n\n"
        while not is_ending() and time.monotonic() - begun_s < followed_s:
            rows: list[EventRow] = []
            try:
                if followed is None:
                    newest = await run_in_threadpool(ledger.events, None, 0, 1, newest=True)
                    followed = FollowedEvents(newest[0].id if newest else 0)
                if (seen := await watch.look()) != change:
                    rows = await run_in_threadpool(ledger.events, job, followed.after, _AT_ONCE)
                    change = seen if len(rows) < _AT_ONCE else None
            except LedgerUnavailable as error:
                yield f": {str(error).splitlines()[0]}\n\n"
                said_s = time.monotonic()
            new = followed.new(row.id for row in rows) if followed is not None else set()
            for row in rows:
                if row.id in new:
                    said_s = time.monotonic()
                    yield f"id: {row.id}\ndata: {json.dumps(asdict(row))}\n\n"
            if time.monotonic() - said_s >= _SAY_S:
                said_s = time.monotonic()
                yield ": nothing new\n\n"
            if len(rows) < _AT_ONCE:
                await asyncio.sleep(_LOOK_S)
    finally:
        _following.discard(me)
