"""Explanation why a job has no output, or what it waits for, from the ledger's rows and Kafka's offsets. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from strandline.core.described import Described
from strandline.core.record_headers import REASON_DUPLICATE, REASON_LATE
from strandline.core.times.durations import format_about, format_duration
from strandline.ledger.states import (
    COMPLETED,
    CheckpointRow,
    EventTimeRule,
    JobRow,
    JobState,
    KeyAhead,
    Offsets,
    SenderFaults,
    SliceRow,
    SliceStatus,
    Totals,
)
from strandline.log.kafka_status import LogRange
from strandline.processing.formats.timestamps import format_timestamp
from strandline.processing.kinds.stage_words import step_in_words, words_of
from strandline.processing.pipelines.checked_pipeline import CheckedPipeline
from strandline.processing.pipelines.event_time import last_ends
from strandline.services.jobs.recent_counts import QUIET_MS_MIN, RECENT_MS, Period, Recent

_NOT_READING = {
    JobState.CREATED: ("not_started", "was never started"),
    JobState.STOPPING: ("stopped", "is stopping"),
    JobState.STOPPED: ("stopped", "is stopped"),
    JobState.DRAINED: ("drained", "is drained: it has closed all of its windows"),
}


@dataclass(frozen=True)
class ExplanationView(Described):
    """Reason why a job has no output, or what it waits for."""

    cause: str
    """Code for programs, as `window_open`."""
    message: str
    next: str
    """Next step for the user."""
    notes: list[str]
    """Problems of senders, whatever the cause is: partitions whose records are all rejected, with reasons and devices, and keys
    that are ahead of their log time."""


@dataclass(frozen=True)
class JobExplanationView(ExplanationView):
    job: str
    rejected_share: float
    """Share of the records of the last hour that were rejected, without duplicates (`duplicate`). 0 if it had no records."""


@dataclass(frozen=True)
class JobFacts:
    """Input of an explanation."""

    job: JobRow
    pipeline: CheckedPipeline
    held: Mapping[str, LogRange | None]
    """Content of the log for each stream that the job reads. None while Kafka doesn't respond."""
    lag_records: int | None
    last_slice: SliceRow | None
    checkpoint: CheckpointRow | None
    totals: Totals
    reached_early: Offsets
    """Stream -> partition -> time of an accepted event of an early slice. Empty if there is none, or if the job has a result."""
    now_ms: int
    unavailable_store: str | None = None
    """Name of the store that the last slice waits for. None if it waits for none."""
    recent: Recent | None = None
    """Newest result, and the counts since then. None if the job has no result since it began or was reset."""

    @property
    def period(self) -> Period:
        """Period over which causes are counted."""
        return Period(self.totals) if self.recent is None else self.recent.period

    @property
    def results_in_words(self) -> str:
        """Results of each stage, with the age of the newest if it isn't small, for messages."""
        words = ", ".join(f"{stage} {count}" for stage, count in self.totals.results.items())
        if self.recent is None or self.recent.age_ms < QUIET_MS_MIN:
            return words
        return f"{words}, the newest {format_about(self.recent.age_ms)} ago"

    @property
    def streams(self) -> str:
        """Return the names of the streams, for messages."""
        names = list(self.pipeline.streams)
        return f"stream {names[0]}" if len(names) == 1 else f"streams {' and '.join(names)}"

    @property
    def quiet_ms(self) -> int | None:
        """Time since the newest record of the streams. None if it is short, or unknown, and for a batch."""
        row, rule = self.checkpoint, self.pipeline.event_time_rule
        if row is None or row.latest_log_ms is None or self.lag_records != 0 or self.job.ends is not None:
            return None
        # Log times of a topic with CreateTime can be old, although its records arrive now.
        newest_ms = max(row.latest_log_ms, row.committed_ms) if row.records else row.latest_log_ms
        # Until twice the timeout, windows close without new records.
        closing_ms = [2 * (rule.of(stream).idle_timeout_ms or 0) for stream in self.pipeline.streams]
        quiet_ms = self.now_ms - newest_ms
        return quiet_ms if quiet_ms >= max(QUIET_MS_MIN, *closing_ms) else None


def explain(facts: JobFacts) -> ExplanationView:
    """Return the first cause on the path of a record. Order: the job runs; Kafka and the store respond; records arrive, are
    read, are accepted, pass the steps; the store accepts results; event time reaches the end of a window."""
    found = (
        _of_state(facts)
        or _of_outside(facts)
        or _of_input(facts)
        or _of_records(facts)
        or _of_results(facts)
        or _of_event_time(facts)
    )
    cause, message, step = found
    faults = facts.checkpoint.sender_faults if facts.checkpoint is not None else SenderFaults()
    return ExplanationView(
        cause=cause, message=message, next=step, notes=notes_of(facts.job.name, faults, facts.last_slice)
    )


def notes_of(job: str, faults: SenderFaults, last_slice: SliceRow | None) -> list[str]:
    """Return a message for each problem of a sender. `last_slice`: its rule rejects records that are too far ahead."""
    notes: list[str] = []
    for partition in faults.rejected_partitions:
        reasons = ", ".join(
            f"{reason} {count}" + (f", last from {partition.senders[reason]}" if reason in partition.senders else "")
            for reason, count in sorted(partition.rejected.items(), key=lambda one: -one[1])
        )
        count = sum(partition.rejected.values())
        notes.append(
            f"stream {partition.stream}, partition {partition.partition}: no record is accepted; all {count} since slice "
            f"{partition.slice_first} were rejected ({reasons}); fix the device, or see the messages: "
            f"strandline dead-letters list {job}"
        )
    notes += [
        f"stream {key.stream}, partition {key.partition}: the clock of {key.key} is {format_about(key.ahead_ms)} ahead of "
        f"its log time; {_remedy_of_clock(key, last_slice)}"
        for key in faults.keys_ahead
    ]
    return notes


def _remedy_of_clock(key: KeyAhead, last_slice: SliceRow | None) -> str:
    rule = last_slice.rule if last_slice else None
    of_stream = dict(rule.by_stream).get(key.stream, rule) if rule else None
    if of_stream is not None and of_stream.max_ahead_ms is not None and key.ahead_ms > of_stream.max_ahead_ms:
        return "event_time.max_ahead rejects its records; set the clock of the device, and requeue them"
    return "set the clock of the device, or reject such records with event_time.max_ahead"


_Answer = tuple[str, str, str]
_AHEAD_MS_MIN = 1_000
"""Shortest time between log time and event time that a message names."""


def _of_state(facts: JobFacts) -> _Answer | None:
    job = facts.job
    if job.state is JobState.FAILED:
        return (
            "failed",
            f"job {job.name} has failed: {job.message}",
            f"fix the cause, then run strandline job start {job.name}",
        )
    if job.has_completed:
        message = f"batch {job.name} has completed: it has read its range, and closed all of its windows"
        return COMPLETED, message, "nothing to do; for another range, run it under another name"
    if job.state in _NOT_READING:
        cause, what = _NOT_READING[job.state]
        return cause, f"job {job.name} {what}", f"strandline job start {job.name}"
    # A run that waits for the store without success ends, and starts again.
    if job.state is JobState.STARTING and facts.unavailable_store is None:
        why = f" ({job.message})" if job.message else ""
        return (
            "starting",
            f"job {job.name} is starting{why}",
            f"wait; strandline job status {job.name} shows when it runs",
        )
    return None


def _of_outside(facts: JobFacts) -> _Answer | None:
    if None in facts.held.values():
        return "log_away", "Kafka does not answer", "check that the broker is running; the job resumes automatically"
    if facts.unavailable_store is not None:
        assert facts.last_slice is not None, "it is the slice that waits"
        message = (
            f"slice {facts.last_slice.number} is not committed, and {facts.unavailable_store} does not respond, or "
            "refuses results"
        )
        step = (
            "check that it is running, and has free disk space and memory; the job resumes automatically. "
            f"strandline job logs {facts.job.name} shows the messages of the store"
        )
        return "writer", message, step
    return _of_slow_slice(facts)


def _of_slow_slice(facts: JobFacts) -> _Answer | None:
    row = facts.last_slice
    if row is None or row.status is not SliceStatus.PLANNED or facts.now_ms - row.planned_ms < QUIET_MS_MIN:
        return None
    message = (
        f"slice {row.number} was planned {format_about(facts.now_ms - row.planned_ms)} ago and is not committed, although "
        "Kafka and the store of the results respond"
    )
    step = (
        f"wait if it reads many records. Otherwise, strandline job logs {facts.job.name} shows what it waits for, such as "
        "a store that is overloaded or whose disk is full"
    )
    return "slow_slice", message, step


def _of_input(facts: JobFacts) -> _Answer | None:
    known = [one for one in facts.held.values() if one is not None]
    if not any(offset for one in known for offset in one.offset_next.values()):
        first, is_one = next(iter(facts.held)), len(facts.held) == 1
        step = (
            f"send a record; the page of stream {first} in the console sends records, and has a command for each gateway. "
            f"strandline stream show {first} counts the records"
        )
        return (
            "no_input",
            f"{facts.streams} {'has' if is_one else 'have'} no record, because no sender has sent one yet",
            step,
        )
    if facts.checkpoint is None:
        if not facts.lag_records:
            step = "send a record, or read from the beginning: input: {start: earliest}, under a new name"
            return (
                "no_input",
                f"job {facts.job.name} starts after the records of {facts.streams}, and no record has arrived since",
                step,
            )
        step = f"wait for it to be committed: strandline job status {facts.job.name}"
        return "first_slice", "the first slice is being read", step
    return None


def _of_records(facts: JobFacts) -> _Answer | None:
    period = facts.period
    counts = period.counts
    when = f" {period.words}" if period.words else ""
    duplicates = counts.rejected.get(REASON_DUPLICATE, 0)
    rejected = sum(counts.rejected.values()) - duplicates
    late = counts.rejected.get(REASON_LATE, 0)
    if late > counts.accepted:
        message = f"{late} of {counts.records} records{when} were late: at their arrival, the watermark had passed "
        message += "their event time"
        name = facts.job.name
        step = (
            "for future records, raise event_time.delay in the document and apply it. To also count the late records, reset the "
            f"job: strandline job stop {name}, strandline job reset {name} --to earliest, strandline job start {name}. A reset "
            "hides the existing results, and recomputes them from the records that are still in the log"
        )
        return "late", message, step
    if rejected > counts.accepted:
        reasons = ", ".join(
            f"{reason} {count}"
            for reason, count in sorted(counts.rejected.items(), key=lambda one: -one[1])
            if reason != REASON_DUPLICATE
        )
        message = f"{rejected} of {counts.records} records{when} were rejected ({reasons})"
        return "rejected", message, f"to see the reason for each record, run {_list_dead_letters(facts, period)}"
    if duplicates > counts.accepted:
        message = (
            f"{duplicates} of {counts.records} records{when} were duplicates by the fields of dedupe, and were dropped"
        )
        return "duplicates", message, "if these are different records, add a field to dedupe that distinguishes them"
    read = counts.records if facts.recent is None else facts.recent.last_minutes.counts.records
    if facts.lag_records and facts.lag_records > max(read // 10, 10_000):
        message = f"{facts.lag_records} records are still to be read"
        return "behind", message, "wait; if the number grows, the job needs more cores: see docs/sizing.md"
    return None


def _of_results(facts: JobFacts) -> _Answer | None:
    return _of_refused(facts) or _of_filtered(facts)


def _of_refused(facts: JobFacts) -> _Answer | None:
    period, totals = Period(facts.totals), facts.totals
    counts = (sum(totals.results.values()), sum((totals.refused or {}).values()))
    if facts.recent is not None:
        period, row = facts.recent.last_minutes, facts.recent.result.row
        counts = (sum(period.counts.results.values()), sum((period.counts.refused or {}).values()))
        if not counts[0]:
            period = Period(totals, f"of slice {row.slice}, the newest with results,", row.committed_ms)
            counts = (sum(row.results.values()), sum(row.refused.values()))
    results, refused = counts
    if not refused or refused * 2 <= results:
        return None
    when = f" {period.words}" if period.words else ""
    message = f"{refused} of {results} results{when} were refused by the store"
    step = f"to see the reasons of the store, run {_list_dead_letters(facts, period, '--reason result')}"
    return "refused", message, step


def _of_filtered(facts: JobFacts) -> _Answer | None:
    """Records are accepted, and nothing of them is left: since the job began, or since its newest result."""
    recent = facts.recent
    if recent is not None and recent.age_ms < QUIET_MS_MIN:
        return None
    if recent is None and any(facts.totals.results.values()):
        return None
    period = Period(facts.totals) if recent is None else recent.since_result
    if not period.counts.accepted:
        return None
    early = facts.reached_early if recent is None else recent.reached_early
    stages = facts.pipeline.stages
    if stages and not _are_closed(facts, [at_ms for partitions in early.values() for at_ms in partitions.values()]):
        return None
    accepted = f"{period.counts.accepted} records" + (f" {period.words}" if period.words else "")
    message = f"{accepted} were accepted, but have no results, because a 'where' drops all of them"
    steps = ", ".join(f"{step.path} ({step_in_words(step)})" for step in dict.fromkeys(facts.pipeline.row_steps))
    return (
        "filtered",
        message,
        f"if results should appear, check the steps with one of the records: {steps or 'there are none'}",
    )


def _are_closed(facts: JobFacts, event_ms: Collection[int]) -> bool:
    """Return True if every window that depends on the earliest of these events is closed, in all stages that emit."""
    if not event_ms or facts.checkpoint is None:
        return False
    emitted = facts.checkpoint.emitted
    ends = zip(facts.pipeline.stages, last_ends(facts.pipeline.windows, min(event_ms)), strict=True)
    return all(emitted.get(stage.name, -1) >= end_ms for stage, end_ms in ends if stage.emits)


def _list_dead_letters(facts: JobFacts, period: Period, options: str = "") -> str:
    """Return the command that lists the dead letters of the period."""
    since = "" if period.from_ms is None else f"--since {_time(period.from_ms)}"
    return " ".join(one for one in ("strandline dead-letters list", facts.job.name, options, since) if one)


def _of_event_time(facts: JobFacts) -> _Answer:
    """Return the next window that closes, and the partition that holds it open."""
    checkpoint, row = facts.checkpoint, facts.last_slice
    assert checkpoint is not None and row is not None, "called only if there is a checkpoint"
    results = sum(facts.totals.results.values())
    if not facts.pipeline.stages:
        if not facts.totals.accepted:
            return "no_input", "no record has been accepted yet", f"strandline dead-letters list {facts.job.name}"
        if facts.quiet_ms is not None:
            return _of_quiet(facts, facts.quiet_ms)
        step = "the results are in the index or stream to which the stage emits"
        return "results", f"each slice emits results ({facts.results_in_words})", step
    rule = facts.pipeline.event_time_rule
    reached = {
        (stream, partition): at_ms
        for stream, partitions in checkpoint.reached.items()
        for partition, at_ms in partitions.items()
    }
    if not reached:
        return "no_input", "no record has been accepted yet", f"strandline dead-letters list {facts.job.name}"
    awake = awake_partitions(rule, checkpoint.reached, row.silence_ms)
    slowest = slowest_partition(rule, checkpoint.reached, row.silence_ms)
    rule = rule.of(slowest[0])
    newest_ms = max(reached.values())
    closed_ms = min(reached.values()) if checkpoint.closes_ms is None else checkpoint.closes_ms
    first = min(facts.pipeline.first_stages, key=lambda one: one.shape.first_end(closed_ms))
    end_ms, window = words_of(first).closing(first, closed_ms, newest_ms, _time)
    needed_ms = end_ms + rule.delay_ms
    silence = "" if rule.idle_timeout_ms is None else f", or after {format_duration(rule.idle_timeout_ms)} of silence"
    closes = f"it closes when event time reaches {_time(needed_ms)} (its end, and the delay of "
    closes += f"{format_duration(rule.delay_ms)}){silence}"
    where = f"partition {slowest[1]} of stream {slowest[0]}"
    drain = f"strandline job stop {facts.job.name} --drain closes every window now"
    if slowest in awake and (stalled := _of_stalled(facts, window, slowest)) is not None:
        return stalled
    if rule.watermark == "partitions" and newest_ms >= needed_ms and reached[slowest] < needed_ms:
        message = f"{where} holds the watermark back: its event time is {_time(reached[slowest])}, that of others "
        message += f"{_time(newest_ms)}; {window} is open"
        step = (
            "check the senders of that partition; event_time.idle_timeout is the silence after which a "
            "partition no longer counts"
        )
        return "held_back", message, step
    if results and facts.quiet_ms is not None:
        return _of_quiet(facts, facts.quiet_ms)
    if results and not _is_overdue(facts, end_ms, closed_ms):
        message = f"the job emits results ({facts.results_in_words}); next is {window}: {closes}; event time is "
        message += _time(reached[slowest])
        return "results", message, "the results are in the index or stream to which the stage emits"
    message = f"{window} is still open: {closes}; event time is {_time(reached[slowest])} in {where}"
    if facts.recent is not None:
        message += f"; the newest result is {format_about(facts.recent.age_ms)} old"
    if facts.quiet_ms is not None:
        message += f"; no record has arrived for {format_about(facts.quiet_ms)}"
    return "window_open", message, f"send records with later event times, or wait for the silence; {drain}"


def _of_stalled(facts: JobFacts, window: str, slowest: tuple[str, int]) -> _Answer | None:
    """Records of the slowest partition are accepted, but its event time doesn't advance: a clock was set back."""
    recent, row = facts.recent, facts.checkpoint
    if recent is None or recent.before is None or row is None or recent.age_ms < QUIET_MS_MIN:
        return None
    stream, partition = slowest
    before, rule = recent.before.row, facts.pipeline.event_time_rule.of(stream)
    reached_ms = row.reached[stream][partition]
    if (
        rule.watermark != "partitions"
        or before.reached.get(stream, {}).get(partition) != reached_ms
        or row.accepted_in.get(stream, {}).get(partition, 0) <= before.slice
    ):
        return None
    message = (
        f"event time of partition {partition} of stream {stream} has been {_time(reached_ms)} for {format_about(RECENT_MS)}, "
        f"although its records are accepted; {window} is open"
    )
    ahead_ms = row.ahead_ms.get(stream, {}).get(partition, 0)
    if ahead_ms >= _AHEAD_MS_MIN:
        message += f"; these are up to {format_about(ahead_ms)} ahead of their log time"
    step = (
        "event time advances to the earlier one of the record's time and its log time. Compare the clock of the Kafka broker "
        "(strandline doctor) and the clocks of the senders of that partition with the correct time"
    )
    return "stalled", message, step


def _is_overdue(facts: JobFacts, end_ms: int, closed_ms: int) -> bool:
    """Return True if the newest result is older than the longest window, its delay, and the silence that closes windows."""
    if facts.recent is None or facts.checkpoint is None:
        return False
    rules = [facts.pipeline.event_time_rule.of(stream) for stream in facts.pipeline.streams]
    waits_ms = max(rule.delay_ms + 2 * (rule.idle_timeout_ms or 0) for rule in rules)
    emitted = [(stage.shape, facts.checkpoint.emitted.get(stage.name, closed_ms)) for stage in facts.pipeline.stages]
    windows_ms = [shape.first_end(at_ms) - at_ms for shape, at_ms in emitted]
    return facts.recent.age_ms > max(end_ms - closed_ms, *windows_ms) + waits_ms + QUIET_MS_MIN


def awake_partitions(rule: EventTimeRule, reached: Offsets, silence_ms: Offsets) -> list[tuple[str, int]]:
    """Return the streams and partitions that are not idle. `reached`, `silence_ms`: as in `SliceRow`."""
    return [
        (stream, partition)
        for stream, partitions in reached.items()
        for partition in partitions
        if (timeout_ms := rule.of(stream).idle_timeout_ms) is None
        or silence_ms.get(stream, {}).get(partition, 0) < timeout_ms
    ]


def slowest_partition(rule: EventTimeRule, reached: Offsets, silence_ms: Offsets) -> tuple[str, int]:
    """Return the stream and partition that hold the watermark back: those of the lowest event time, less the delay of the stream.
    Idle partitions count only if all are idle.

    Args: reached, silence_ms: As in `SliceRow`. `reached` must not be empty.
    """
    every = [(stream, partition) for stream, partitions in reached.items() for partition in partitions]
    candidates = awake_partitions(rule, reached, silence_ms) or every
    return min(candidates, key=lambda place: reached[place[0]][place[1]] - rule.of(place[0]).delay_ms)


def _of_quiet(facts: JobFacts, quiet_ms: int) -> _Answer:
    """Return the explanation for senders that sent records before, but none for `quiet_ms`."""
    message = (
        f"the newest record of {facts.streams} is {format_about(quiet_ms)} old, and all records are read; results so far: "
        f"{facts.results_in_words or 'none'}"
    )
    step = "if records should arrive, check the senders and the gateway; strandline stream show "
    step += f"{next(iter(facts.held))} shows the next offset of each partition"
    names = [
        stream for stream in facts.pipeline.streams if facts.pipeline.event_time_rule.of(stream).idle_timeout_ms is None
    ]
    if facts.pipeline.stages and names:
        step += (
            f"; idle_timeout of stream {names[0]} is null, so open windows wait for records. "
            f"strandline job stop {facts.job.name} --drain closes them now"
        )
    return "no_input", message, step


def _time(at_ms: int) -> str:
    return format_timestamp(at_ms * 1000).replace("000Z", "Z")
