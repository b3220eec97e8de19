"""State machine of a notice: makes messages from new findings and from the problems reported before. Pure: no clock, no I/O.

A problem is in one of these states:

    found --> reported --> ended
      |                    ^
      +-> ended, unreported (reported together with its end)

Invariants, for each history of checks, kills, and new leaders:

- Every event that a condition found has a problem, and every problem is part of a message about it.
- No message is made without a problem that was found.
- The end of each problem is reported at most once, and only together with or after the problem.
- A message waits for the group, the cooldown, quiet hours, and muting. It is delayed and joined with others, never dropped.

The caller records the result of `look` in one transaction. If it can't, it repeats the check with the state in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from strandline.ledger.notices import MessageRow, ProblemRow
from strandline.notices.finding import Finding, Happened, Sight

_REMOVED = "The document of the notice doesn't contain this condition any more, so the current state is unknown."
GroupBy = Literal["condition", "job", "problem", "notice"]
Kind = Literal["problem", "resolved", "reminder"]
Render = Callable[[Kind, Sequence[ProblemRow]], dict[str, Any]]
"""Function that makes the content of a message."""


@dataclass(frozen=True)
class Rules:
    """Rules of a notice's document for the time and content of messages."""

    notice: str
    channels: tuple[str, ...]
    group_by: GroupBy = "condition"
    wait_ms: int = 10_000
    """Time for which a new problem waits for others of its group."""
    every_ms: int = 60_000
    """Minimum time between two messages of one kind about one group."""
    cooldown_ms: int = 600_000
    """Minimum time between two messages about new problems of one subject."""
    remind_after_ms: int | None = None
    """Time after which a reminder of an open problem is sent. None if no reminder is sent."""
    reports_end: bool = True
    """True if a message reports that problems are over."""


@dataclass(frozen=True)
class Memory:
    """State of a notice between two checks, in addition to its problems."""

    problems: int = 0
    """Number of problems so far; the next one has the next number."""
    messages: int = 0
    pending: Mapping[str, int] = field(default_factory=dict)
    """Condition and subject -> time at which a condition first found the problem that isn't open yet."""
    clearing: Mapping[str, int] = field(default_factory=dict)
    """Condition and subject -> time since which an open problem isn't found any more."""
    groups: Mapping[str, int] = field(default_factory=dict)
    """Kind and group -> time of its last message."""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Memory:
        """Return the memory that `stored` returned earlier."""
        return cls(**stored)

    @property
    def stored(self) -> dict[str, Any]:
        return {
            "problems": self.problems,
            "messages": self.messages,
            "pending": dict(self.pending),
            "clearing": dict(self.clearing),
            "groups": dict(self.groups),
        }


@dataclass(frozen=True)
class Look:
    """Changes by one check."""

    memory: Memory
    problems: tuple[ProblemRow, ...]
    """New problems and changed ones."""
    messages: tuple[MessageRow, ...]


def look(
    rules: Rules,
    memory: Memory,
    known: Sequence[ProblemRow],
    sights: Mapping[str, Sight],
    now_ms: int,
    render: Render,
    *,
    is_held: bool = False,
) -> Look:
    """Return the changes that follow from the findings of the conditions.

    1. Events open problems. An event about an open problem ends it first: the condition was over in between.
    2. Other findings open problems if they have held for long enough, or update the text of unreported problems.
    3. Open problems that aren't found any more end, and those whose state can't become known any more.
    4. Due problems become messages, one for each group and kind, to each channel.

    `known`: the problems that aren't settled, and those that were reported within the cooldown. `sights`: condition -> its
    findings; a condition that isn't in it is no longer part of the document. `is_held`: quiet hours or a muted notice.
    """
    state = _State(rules, memory, known, now_ms)
    for condition, sight in sights.items():
        for happened in sorted(sight.happened, key=lambda one: one.event):
            state.open_by_event(condition, happened, sight)
        if not sight.by_events:
            state.open_by_looking(condition, sight)
    state.end_problems(sights)
    messages = () if is_held else state.report(render)
    return Look(state.memory(), tuple(state.changed.values()), messages)


class _State:
    """State during one check."""

    def __init__(self, rules: Rules, memory: Memory, known: Sequence[ProblemRow], now_ms: int) -> None:
        self._rules = rules
        self._now_ms = now_ms
        self._rows = {row.number: row for row in known}
        self._open = {(row.condition, row.subject): row.number for row in known if row.ended_ms is None}
        self._problems, self._messages = memory.problems, memory.messages
        self._pending, self._clearing = dict(memory.pending), dict(memory.clearing)
        self._groups = dict(memory.groups)
        self.changed: dict[int, ProblemRow] = {}

    def memory(self) -> Memory:
        kept_ms = self._now_ms - max(self._rules.every_ms, 60_000)
        groups = {group: at_ms for group, at_ms in self._groups.items() if at_ms > kept_ms}
        return Memory(self._problems, self._messages, self._pending, self._clearing, groups)

    def open_by_event(self, condition: str, happened: Happened, sight: Sight) -> None:
        finding = happened.finding
        number = self._open.get((condition, finding.subject))
        if number is not None:
            self._change(number, ended_ms=max(happened.at_ms, self._rows[number].since_ms))
            del self._open[condition, finding.subject]
        self._add(condition, finding, happened.event, happened.at_ms, has_end=sight.has_end)

    def open_by_looking(self, condition: str, sight: Sight) -> None:
        for subject, finding in sight.holding.items():
            key = _key(condition, subject)
            number = self._open.get((condition, subject))
            if number is not None:
                if self._rows[number].reported_ms is None:
                    self._change(number, **_text(finding))
                continue
            since_ms = self._pending.setdefault(key, self._now_ms)
            if self._now_ms - since_ms >= sight.hold_ms:
                del self._pending[key]
                self._add(condition, finding, 0, since_ms, has_end=sight.has_end)

    def end_problems(self, sights: Mapping[str, Sight]) -> None:
        for (condition, subject), number in list(self._open.items()):
            key, sight = _key(condition, subject), sights.get(condition)
            if sight is not None and (sight.is_blind or subject in sight.unknown):
                continue
            if sight is not None and subject in sight.holding:
                self._clearing.pop(key, None)
                continue
            reason = _REMOVED if sight is None else sight.lost.get(subject, "")
            since_ms = self._clearing.setdefault(key, self._now_ms)
            if sight is None or reason or self._now_ms - since_ms >= sight.clear_ms:
                self._clearing.pop(key)
                self._change(number, ended_ms=self._now_ms, end_reason=reason)
                del self._open[condition, subject]
        held = {_key(condition, subject) for condition, sight in sights.items() for subject in sight.holding}
        unsure = {_key(condition, subject) for condition, sight in sights.items() for subject in sight.unknown}
        blind = tuple(f"{condition}\n" for condition, sight in sights.items() if sight.is_blind)
        self._pending = {
            key: since_ms
            for key, since_ms in self._pending.items()
            if key in held or key in unsure or (blind and key.startswith(blind))
        }
        is_open = {_key(*key) for key in self._open}
        self._clearing = {key: since_ms for key, since_ms in self._clearing.items() if key in is_open}

    def report(self, render: Render) -> tuple[MessageRow, ...]:
        """Make messages of all due problems, ends first. So an end and a new problem of one subject stay in this order."""
        made: list[MessageRow] = []
        kinds: tuple[tuple[Kind, str], ...] = (
            ("resolved", "end_reported_ms"),
            ("problem", "reported_ms"),
            ("reminder", "reminded_ms"),
        )
        for kind, stamp in kinds:
            for group, rows in self._due(kind).items():
                rows = [self._change(row.number, **{stamp: self._now_ms}) for row in rows]
                if kind == "problem":
                    rows = [
                        row if row.ended_ms is None else self._change(row.number, end_reported_ms=self._now_ms)
                        for row in rows
                    ]
                elif kind == "resolved" and not self._rules.reports_end:
                    continue
                self._groups[f"{kind}\n{group}"] = self._now_ms
                made += self._message(kind, rows, render)
        return tuple(made)

    def _due(self, kind: Kind) -> dict[str, list[ProblemRow]]:
        """Group -> problems for a message of this kind now. A group is due if one of its problems is due; the others join it."""
        ready: dict[str, list[ProblemRow]] = {}
        due: set[str] = set()
        for row in self._rows.values():
            at_ms = self._due_ms(kind, row)
            if at_ms is None:
                continue
            group = self._group_of(row)
            last_ms = self._groups.get(f"{kind}\n{group}")
            if last_ms is not None and self._now_ms < last_ms + self._rules.every_ms:
                continue
            is_due = self._now_ms >= at_ms
            if is_due:
                due.add(group)
            if is_due or kind != "reminder":
                ready.setdefault(group, []).append(row)
        return {group: rows for group, rows in ready.items() if group in due}

    def _due_ms(self, kind: Kind, row: ProblemRow) -> int | None:
        """Return the time at which a message of this kind about a problem is due. None if no message is due, or if the cooldown
        of its subject isn't over."""
        if kind == "problem":
            if row.reported_ms is not None or self._now_ms < self._cool_ms(row):
                return None
            return row.opened_ms + self._rules.wait_ms
        if row.reported_ms is None:
            return None
        if kind == "resolved":
            is_wanted = row.ended_ms is not None and row.end_reported_ms is None
            return row.ended_ms + self._rules.wait_ms if is_wanted and row.ended_ms is not None else None
        if row.ended_ms is not None or row.reminded_ms is not None or self._rules.remind_after_ms is None:
            return None
        return row.reported_ms + self._rules.remind_after_ms

    def _cool_ms(self, row: ProblemRow) -> int:
        """Return the end of the cooldown of a problem's subject."""
        reported = [
            one.reported_ms
            for one in self._rows.values()
            if one.reported_ms is not None and (one.condition, one.subject) == (row.condition, row.subject)
        ]
        return max(reported) + self._rules.cooldown_ms if reported else 0

    def _group_of(self, row: ProblemRow) -> str:
        match self._rules.group_by:
            case "condition":
                return row.condition
            case "job":
                return row.job or row.subject
            case "problem":
                return str(row.number)
            case _:
                return ""

    def _message(self, kind: Kind, rows: Sequence[ProblemRow], render: Render) -> list[MessageRow]:
        rows = sorted(rows, key=lambda row: row.number)
        content, made = render(kind, rows), []
        for channel in self._rules.channels:
            self._messages += 1
            numbers = [row.number for row in rows]
            made.append(
                MessageRow(
                    self._rules.notice, self._messages, channel, kind, numbers, content, self._now_ms, self._now_ms
                )
            )
        return made

    def _add(self, condition: str, finding: Finding, cause: int, since_ms: int, *, has_end: bool) -> None:
        self._problems += 1
        row = ProblemRow(
            notice=self._rules.notice,
            number=self._problems,
            condition=condition,
            subject=finding.subject,
            job=finding.job,
            cause=cause,
            since_ms=since_ms,
            opened_ms=self._now_ms,
            ended_ms=None if has_end else since_ms,
            **_text(finding),
        )
        self._rows[row.number] = self.changed[row.number] = row
        if has_end:
            self._open[condition, finding.subject] = row.number

    def _change(self, number: int, **fields: Any) -> ProblemRow:
        row = self._rows[number] = self.changed[number] = replace(self._rows[number], **fields)
        return row


def _key(condition: str, subject: str) -> str:
    return f"{condition}\n{subject}"


def _text(finding: Finding) -> dict[str, Any]:
    return {
        "title": finding.title,
        "reason": finding.reason,
        "affected": finding.affected,
        "action": finding.action,
    }
