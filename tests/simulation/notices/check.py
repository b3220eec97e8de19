"""Find what is wrong with a history of notices, as a pure function of what was received and what the ledger contains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from strandline.ledger.notices import MessageRow, ProblemRow
from strandline.notices.readings import CURRENT_MS
from tests.simulation.notices.history import NAME, History

DISK = "disk of control service"


def check(history: History) -> list[str]:
    """Return a finding for each broken promise, as `kind: details`."""
    ledger, findings = history.ledger, []
    problems = {row.number: row for row in ledger.problems.values()}
    messages = {row.number: row for row in ledger.messages.values()}
    received: dict[int, list[int]] = defaultdict(list)
    confirmed: dict[int, int] = defaultdict(int)
    for one in history.received:
        received[one.number].append(one.at_ms)
        confirmed[one.number] += one.was_confirmed

    def reaches(message: MessageRow) -> bool:
        """Return whether the message, or the summary that replaces it, was received and confirmed."""
        while message.merged_into is not None:
            if set(message.problems) - set(messages[message.merged_into].problems):
                return False
            message = messages[message.merged_into]
        return confirmed[message.number] > 0

    caused = {row.cause for row in problems.values() if row.cause}
    findings += [f"lost: event {event} has no problem" for event in history.world.causes if event not in caused]
    by_problem: dict[tuple[int, str, str], list[MessageRow]] = defaultdict(list)
    for message in messages.values():
        if message.kind not in ("summary", "test"):
            for number in message.problems:
                by_problem[number, message.channel, message.kind].append(message)
    for number, row in problems.items():
        for channel in history.spec.channels:
            reports = by_problem[number, channel, "problem"]
            if len(reports) != 1:
                findings.append(f"reported: problem {number} has {len(reports)} messages to {channel}")
            elif not reaches(reports[0]):
                findings.append(f"lost: problem {number} was not received by {channel}")
            ends = by_problem[number, channel, "resolved"]
            was_over = bool(reports) and _is_over(reports[0], number)
            if len(ends) + was_over != 1:
                findings.append(
                    f"resolved: the end of problem {number} has {len(ends) + was_over} messages to {channel}"
                )
            elif ends and not reaches(ends[0]):
                findings.append(f"lost: the end of problem {number} was not received by {channel}")
            if len(by_problem[number, channel, "reminder"]) > 1:
                findings.append(f"reminded: problem {number} more than once")
        if row.cause and history.world.causes.get(row.cause) != row.subject:
            findings.append(f"no cause: problem {number} of event {row.cause}")
        if row.condition == "disk_full":
            findings += _of_disk(history, row)
            continue
        if not row.cause and row.subject not in history.world.lagged:
            findings.append(f"no cause: {row.subject} had no lag")
        if not row.cause and row.ended_ms is not None and row.ended_ms not in history.world.well_at[row.subject]:
            findings.append(f"no cause: the lag of {row.subject} was not seen to end at {row.ended_ms}")
    for service in history.world.full_at_end:
        opened = [row for row in problems.values() if row.subject == f"{DISK} {service}"]
        if not any(row.ended_ms is None or row.ended_ms > history.end_ms for row in opened):
            findings.append(f"lost: the full disk of {service} has no problem")
    findings += [f"no cause: message {number} is about nothing" for number, one in messages.items() if not one.problems]
    findings += _over_limit(history)
    for number, times in received.items():
        repeats = confirmed[number] - 1
        if repeats > history.repeats_allowed[number]:
            findings.append(f"repeated: message {number} was received {len(times)} times")
    if ledger.pending_messages():
        findings.append(f"lost: {len(ledger.pending_messages())} messages were not sent in the end")
    assert ledger.rows.keys() == {NAME}
    return findings


def _of_disk(history: History, row: ProblemRow) -> Iterator[str]:
    """Check that current readings of the machine itself, and no others, began and ended its problem."""
    service = row.subject.removeprefix(f"{DISK} ")

    def is_full(at_ms: int) -> bool | None:
        """Return the state in the current reading at a time. None if there was none."""
        current = [
            one.readings["disk"]["free_bytes"] < 100
            for one in history.ledger.all_readings
            if one.service == service and at_ms - CURRENT_MS <= one.at_ms <= at_ms
        ]
        return current[-1] if current else None

    if is_full(row.since_ms) is not True:
        yield f"no cause: {row.subject} was not full at {row.since_ms}"
    if row.ended_ms is not None and is_full(row.ended_ms) is not False:
        yield f"no cause: {row.subject} was not seen to be emptied at {row.ended_ms}"


def _is_over(message: MessageRow, number: int) -> bool:
    return any(one["number"] == number and one["ended_ms"] is not None for one in message.content["problems"])


def _over_limit(history: History) -> list[str]:
    found = []
    for channel in history.spec.channels:
        times = sorted(one.at_ms for one in history.received if one.channel == channel)
        for first, last in zip(times, times[history.limit :], strict=False):
            if last - first < 60_000:
                found.append(f"limit: {channel} got more than {history.limit} messages from {first} to {last}")
                break
    return found
