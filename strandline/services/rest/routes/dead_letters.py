"""Dead letters: list, count, show, repair, requeue, and the outcome of requeued records.

A long response has several parts; each contains the path of the next.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Body, Path, Query
from pydantic import Field

from strandline.core.record_headers import DeadLetterReason
from strandline.core.times.durations import TIME_MS_MAX
from strandline.log.kafka_status import StoredDeadLetter
from strandline.log.reader import OffsetRange
from strandline.services.jobs.dead_letters import DeadLetterFilter, ReplayReport, kind_of, preview_of
from strandline.services.jobs.payload_edits import EDITS_MAX, PayloadEdit
from strandline.services.rest.dependencies import INTEGER_MAX, Caller, Control
from strandline.services.rest.views import (
    DeadLetterCounts,
    DeadLetterFull,
    DeadLetterList,
    DeadLetterView,
    RepairsView,
    RepairView,
    RequeuedView,
    RequeueView,
    View,
)

router = APIRouter(tags=["dead letters"])

Limit = Annotated[int, Query(ge=1, le=1000)]
After = Annotated[int, Query(ge=-1, le=INTEGER_MAX, description="Only dead letters with a higher number.")]
Reason = Annotated[DeadLetterReason | None, Query(description="Only dead letters with this reason.")]
Step = Annotated[str | None, Query(description="Only dead letters of this step.")]
Since = Annotated[
    int | None, Query(ge=0, le=TIME_MS_MAX, description="Only dead letters written at or after this time (ms).")
]
Until = Annotated[
    int | None, Query(ge=0, le=TIME_MS_MAX, description="Only dead letters written before this time (ms).")
]
Kind = Annotated[
    str | None,
    Query(
        max_length=2_000,
        description="Only dead letters of this kind: `kind` of a dead letter, its message without values.",
    ),
]
BeforeNumber = Annotated[
    int | None,
    Query(ge=0, le=INTEGER_MAX, description="Only dead letters with a lower number, from an earlier response."),
]
OnlyDryRun = Annotated[bool, Query(description="Return the expected outcome, and write nothing.")]
Order = Annotated[Literal["oldest", "newest"], Query(description="Dead letters at the begin of the list.")]
Before = Annotated[
    int | None,
    Query(ge=0, le=INTEGER_MAX, description="Only dead letters with a lower number, if the newest are listed first."),
]


@router.get("/v1/jobs/{name}/dead-letters")
def list_dead_letters(
    control: Control,
    name: str,
    after: After = -1,
    limit: Limit = 100,
    reason: Reason = None,
    step: Step = None,
    since_ms: Since = None,
    until_ms: Until = None,
    kind: Kind = None,
    record: Annotated[
        str | None, Query(max_length=300, description="Only dead letters of this record: STREAM/PARTITION/OFFSET.")
    ] = None,
    order: Order = "oldest",
    before: Before = None,
) -> DeadLetterList:
    """Return rejected records and refused results, with the reason and the source position. A page that reads many
    dead letters which don't match is shorter, and contains the path of the next page.
    """
    wanted = DeadLetterFilter(reason, step, since_ms, until_ms, kind, record)
    if order == "newest":
        newest = control.dead_letters.newest(name, wanted, before, limit)
        following = None
        if newest.before is not None:
            following = _path(name, "", wanted, order=order, before=newest.before, limit=limit)
        return DeadLetterList(dead_letters=[_dead_letter_view(one) for one in newest.letters], next=following)
    page = control.dead_letters.page(name, wanted, after, limit)
    following = None if page.after is None else _path(name, "", wanted, after=page.after, limit=limit)
    return DeadLetterList(dead_letters=[_dead_letter_view(one) for one in page.letters], next=following)


@router.get("/v1/jobs/{name}/dead-letters/counts")
def count_dead_letters(
    control: Control,
    name: str,
    after: After = -1,
    reason: Reason = None,
    step: Step = None,
    since_ms: Since = None,
    until_ms: Until = None,
    kind: Kind = None,
) -> DeadLetterCounts:
    """Return the counts of dead letters by reason and by step. If there are many, a response counts a part: add up
    all parts.
    """
    wanted = DeadLetterFilter(reason, step, since_ms, until_ms, kind)
    found = control.dead_letters.counts(name, wanted, after)
    following = None if found.after is None else _path(name, "/counts", wanted, after=found.after)
    return DeadLetterCounts(dead_letters=found.letters, reasons=found.reasons, steps=found.steps, next=following)


@router.get("/v1/jobs/{name}/dead-letters/requeued")
def show_requeued(
    control: Control,
    name: str,
    written: Annotated[
        list[Annotated[str, Query(pattern=r"^[^/]{1,249}/\d{1,9}/\d{1,15}-\d{1,15}$")]],
        Query(max_length=1_000, description="Ranges with the requeued records, from `follow` of a response."),
    ],
    letter_first: Annotated[
        int, Query(ge=0, le=INTEGER_MAX, description="First number of a dead letter that can result, from `follow`.")
    ],
) -> RequeuedView:
    """Return what became of requeued records: how many the job has not read yet, how many it accepted, and how many are
    dead letters again, by reason.
    """
    found = control.dead_letters.requeued(name, [_range(one) for one in written], letter_first)
    return RequeuedView(**vars(found))


@router.get("/v1/jobs/{name}/dead-letters/{number}")
def show_dead_letter(control: Control, name: str, number: Annotated[int, Path(ge=0, le=INTEGER_MAX)]) -> DeadLetterFull:
    """Return one dead letter with all bytes of the record."""
    found = control.dead_letters.letter(name, number)
    view = _dead_letter_view(found).model_dump()
    view["value"] = found.value.decode("utf-8", "replace")
    return DeadLetterFull(
        **view,
        value_base64=base64.b64encode(found.value).decode("ascii"),
        replay_of=control.dead_letters.origin_of(found),
    )


@router.post("/v1/jobs/{name}/dead-letters/requeue")
def requeue_dead_letters(
    control: Control,
    caller: Caller,
    name: str,
    after: After = -1,
    before: BeforeNumber = None,
    reason: Reason = None,
    step: Step = None,
    since_ms: Since = None,
    until_ms: Until = None,
    kind: Kind = None,
    force: Annotated[
        bool,
        Query(
            description="Also requeue records that failed again after an earlier request, or that other branches accepted."
        ),
    ] = False,
    dry_run: OnlyDryRun = False,
) -> RequeueView:
    """Requeue dead letters: write their records to their stream again, each at most once. A request handles a part
    of them, and its response contains the path of the next part.
    """
    wanted = DeadLetterFilter(reason, step, since_ms, until_ms, kind)
    found = control.dead_letters.replay(name, wanted, after, before, force=force, dry_run=dry_run, principal=caller)
    flags = {"force": str(force).lower(), "dry_run": str(dry_run).lower()}
    following = None
    if found.after is not None:
        following = _path(name, "/requeue", wanted, after=found.after, before=found.before, **flags)
    return RequeueView(**_counts(name, found), dry_run=dry_run, next=following)


class PayloadEdits(View):
    """Edits of payloads."""

    edits: Annotated[list[PayloadEdit], Field(min_length=1, max_length=EDITS_MAX)]
    """Edits, applied in the order `replace`, `rename`, `number`, `set`, `remove`."""


@router.post("/v1/jobs/{name}/dead-letters/repairs")
def repair_dead_letters(
    control: Control,
    caller: Caller,
    name: str,
    wanted_edits: PayloadEdits,
    after: After = -1,
    before: BeforeNumber = None,
    reason: Reason = None,
    step: Step = None,
    since_ms: Since = None,
    until_ms: Until = None,
    kind: Kind = None,
    force: Annotated[
        bool,
        Query(description="Also requeue records that would be rejected again, or that other branches accepted."),
    ] = False,
    dry_run: OnlyDryRun = False,
) -> RepairsView:
    """Edit the payloads of dead letters in the same way, and requeue the records that the current version then accepts,
    each at most once. A request handles a part of them, and its response contains the path of the next part.
    """
    wanted = DeadLetterFilter(reason, step, since_ms, until_ms, kind)
    found = control.dead_letters.replay(
        name, wanted, after, before, force=force, dry_run=dry_run, principal=caller, edits=wanted_edits.edits
    )
    flags = {"force": str(force).lower(), "dry_run": str(dry_run).lower()}
    following = None
    if found.after is not None:
        following = _path(name, "/repairs", wanted, after=found.after, before=found.before, **flags)
    return RepairsView(**_counts(name, found), dry_run=dry_run, repairs=found.repairs, next=following)


@router.post("/v1/jobs/{name}/dead-letters/repair")
def repair_dead_letter(
    control: Control,
    caller: Caller,
    name: str,
    dead_letter: Annotated[
        str, Query(max_length=300, description="Number of the dead letter, or STREAM/PARTITION/OFFSET of its record.")
    ],
    payload: Annotated[bytes, Body(media_type="application/octet-stream")],
    force: Annotated[bool, Query(description="Requeue the record even if it would be rejected again.")] = False,
    dry_run: OnlyDryRun = False,
) -> RepairView:
    """Requeue the record of one dead letter with the body of the request as its payload, at most once."""
    found = control.dead_letters.repair(name, dead_letter, payload, force=force, dry_run=dry_run, principal=caller)
    return RepairView(
        dry_run=dry_run,
        number=found.letter,
        requeued_before=found.is_already,
        outcome=found.dry_run.outcome,
        message=found.dry_run.message,
        follow=_requeued_path(name, found.written, found.letter_first),
    )


def _counts(name: str, found: ReplayReport) -> dict[str, Any]:
    """Return the fields that the responses of requeue and repair share."""
    return {
        "matched": found.matched,
        "requeued": found.requeued,
        "requeued_before": found.requeued_before,
        "unknown": found.unknown,
        "skipped": found.skipped,
        "outcomes": found.outcomes,
        "follow": _requeued_path(name, found.written, found.before),
    }


def _requeued_path(name: str, written: Sequence[OffsetRange], letter_first: int) -> str | None:
    """Return the path of the outcome of requeued records. None if there are none."""
    if not written:
        return None
    ranges = [f"{one.stream}/{one.partition}/{one.offset_first}-{one.offset_next}" for one in written]
    query = urlencode({"written": ranges, "letter_first": letter_first}, doseq=True)
    return f"/v1/jobs/{quote(name, safe='')}/dead-letters/requeued?{query}"


def _range(text: str) -> OffsetRange:
    stream, partition, offsets = text.split("/")
    first, _, following = offsets.partition("-")
    return OffsetRange(stream, int(partition), int(first), int(following))


def _path(name: str, verb: str, wanted: DeadLetterFilter, **more: int | str) -> str:
    """Return the path of the next part."""
    query = {key: value for key, value in (more | vars(wanted)).items() if value is not None}
    return f"/v1/jobs/{quote(name, safe='')}/dead-letters{verb}?{urlencode(query)}"


def _dead_letter_view(letter: StoredDeadLetter) -> DeadLetterView:
    headers = letter.headers
    return DeadLetterView(
        number=letter.offset,
        stream=headers.get("stream", ""),
        partition=_number(headers.get("partition")),
        offset=_number(headers.get("offset")),
        element=_number(headers.get("element")),
        reason=headers.get("reason", ""),
        message=headers.get("message", ""),
        kind=kind_of(headers.get("message", "")),
        step=headers.get("step", ""),
        log_time_ms=letter.log_time_ms,
        value=preview_of(letter.value),
        value_bytes=len(letter.value),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
