"""Content of messages. Pure.

A message answers three questions: what is wrong, what is affected, what to do. Its title is sufficient for the display of a
phone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from strandline.ledger.notices import ProblemRow
from strandline.notices.conditions.table import CONDITIONS, condition_of
from strandline.notices.view import show_time

Kind = Literal["problem", "resolved", "reminder", "summary", "test"]
SHOWN_MAX = 10
"""Maximum number of problems with their whole text in a message."""
NAMED_MAX = 50
"""Maximum number of other problems with their title in a message."""
_REASON_MAX = 1_000


def render(notice: str, kind: Kind, rows: Sequence[ProblemRow], about: str = "") -> dict[str, Any]:
    """Return the content of a message. `about`: text of the document for each message, for example the link to a runbook."""
    if kind == "test":
        return {
            "kind": kind,
            "status": "test",
            "title": f"Test of notice {notice}",
            "text": f"This is a test. Notice {notice} reaches you through this channel. There is nothing to do.{_about(about)}",
            "problems": [],
        }
    is_over = all(row.ended_ms is not None for row in rows)
    title = _title(kind, rows)
    shown, rest = rows[:SHOWN_MAX], rows[SHOWN_MAX:]
    parts = [_resolved_text(row) if kind == "resolved" else _text(row) for row in shown]
    if rest:
        named = "\n".join(f"- {row.title}" for row in rest[:NAMED_MAX])
        more = len(rest) - NAMED_MAX
        parts.append(f"In addition:\n{named}" + (f"\n- {more:,} more" if more > 0 else ""))
        parts.append(f"All of them: strandline notice show {notice}")
    return {
        "kind": kind,
        "status": "resolved" if is_over else "open",
        "title": title,
        "text": "\n\n".join(parts) + _about(about),
        "problems": [_facts(row) for row in [*shown, *rest[:NAMED_MAX]]],
    }


def _title(kind: Kind, rows: Sequence[ProblemRow]) -> str:
    first = rows[0].title
    if kind == "summary":
        counts = Counter(row.condition for row in rows)
        shown = ", ".join(f"{count} {condition}" for condition, count in counts.most_common(5))
        return f"Summary of {len(rows)} problems: {shown}"
    if kind == "resolved":
        is_lost = any(row.end_reason for row in rows)
        prefix = "No longer checked" if is_lost else "Resolved"
        if len(rows) == 1:
            return f"{prefix}: {first}"
        more = "over or no longer checked: " if is_lost else "Resolved: "
        return f"{more.capitalize()}{len(rows)} problems, the first: {first}"
    prefix = "Still open: " if kind == "reminder" else ""
    if len(rows) == 1:
        is_over = rows[0].ended_ms is not None and rows[0].ended_ms > rows[0].since_ms
        over = " (no longer checked)" if rows[0].end_reason else " (over by now)"
        return f"{prefix}{first}" + (over if is_over else "")
    return f"{prefix}{len(rows)} problems, the first: {first}"


def _text(row: ProblemRow) -> str:
    # A moment, as the end of a batch, ends when it begins.
    when = "" if row.ended_ms == row.since_ms else "since "
    lines = [f"WHAT: {row.title}.", f"WHEN: {when}{show_time(row.since_ms)}"]
    if row.reason:
        lines.append(f"WHY: {row.reason[:_REASON_MAX]}")
    if row.end_reason and row.ended_ms is not None:
        lines.append(f"NOT CHECKED: since {show_time(row.ended_ms)}. {row.end_reason}")
    elif row.ended_ms is not None and row.ended_ms > row.since_ms:
        lines.append(f"OVER: since {show_time(row.ended_ms)}.")
    lines += [f"AFFECTED: {row.affected}", f"DO:\n{row.action}"]
    return "\n".join(lines)


def _resolved_text(row: ProblemRow) -> str:
    if row.end_reason and row.ended_ms is not None:
        began = f"{row.title}: began {show_time(row.since_ms)}"
        return f"{began}, not checked since {show_time(row.ended_ms)}. {row.end_reason}"
    ended = "" if row.ended_ms is None else f", over since {show_time(row.ended_ms)}"
    return f"{row.title}: began {show_time(row.since_ms)}{ended}. {_after_end(row)}"


def _after_end(row: ProblemRow) -> str:
    """Return the next step after the end of a problem."""
    keyword = row.condition.partition(" ")[0]  # a second condition of a kind has a number
    if keyword not in CONDITIONS:  # of a newer version of Strandline
        return "There is nothing to do."
    step = getattr(condition_of(keyword), "AFTER_END", "There is nothing to do.")
    return str(step.format(job=row.job))


def _facts(row: ProblemRow) -> dict[str, Any]:
    return {
        "number": row.number,
        "condition": row.condition,
        "subject": row.subject,
        "job": row.job,
        "title": row.title,
        "reason": row.reason[:_REASON_MAX],
        "affected": row.affected,
        "action": row.action,
        "since_ms": row.since_ms,
        "ended_ms": row.ended_ms,
    }


def _about(about: str) -> str:
    return f"\n\n{about}" if about else ""


def placeholders(content: Mapping[str, Any], message: str) -> dict[str, str]:
    """Return the values of the placeholders of a template: name -> text. `message`: its id, `NOTICE@LIFE-NUMBER`."""
    problems = content["problems"]
    first = problems[0] if problems else {}
    key = f"{message.rpartition('-')[0]}/{first['number']}" if len(problems) == 1 else message
    return {
        "title": str(content["title"]),
        "text": str(content["text"]),
        "kind": str(content["kind"]),
        "status": str(content["status"]),
        "action": "resolve" if content["status"] == "resolved" else "trigger",
        "notice": message.partition("@")[0],
        "id": message,
        "key": str(key),
        "condition": str(first.get("condition", "")),
        "subject": str(first.get("subject", "")),
        "job": str(first.get("job") or ""),
    }


PLACEHOLDERS = (
    "title",
    "text",
    "kind",
    "status",
    "action",
    "notice",
    "id",
    "key",
    "condition",
    "subject",
    "job",
)
