"""A run of the simulated job, step by step as `Runner._run_version` and `SliceCommitter` do it."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from strandline.core.errors import Conflict, Fenced, LedgerUnavailable, LogTruncated, LogUnavailable
from strandline.core.record_headers import dead_letter_topic
from strandline.ledger.states import CheckpointRow, Desired, RunRow, SliceRow, SliceStatus
from strandline.processing.emission.fencing import slots_of_older_runs
from strandline.processing.emission.transactional_ids import (
    id_of_refused_results,
    id_of_rejected_records,
    id_of_result_stream,
)
from strandline.processing.slices.continuity import LogContinuity
from strandline.processing.slices.planner import InputStream, PlannerSettings, SlicePlanner, is_drained
from strandline.processing.slices.rewind import RewindPlan, plan_of_job, require_log_holds, rewind_cost
from strandline.processing.slices.silence import SilenceMeter
from strandline.processing.slices.watermark import (
    accepted_in_after,
    accepted_partitions,
    closes_after,
    emitted_up_to,
    greatest,
    reached_after,
)
from tests.simulation.index import Answer
from tests.simulation.log import Record
from tests.simulation.operators import Operators
from tests.simulation.topic import Topic
from tests.simulation.versions import JOB, RESULTS, STREAM, shapes_of
from tests.simulation.windows import Results

if TYPE_CHECKING:
    from tests.simulation.world import World

TASK_TRIES = 4
ENTRIES_A_TRANSACTION = 3

DRIFT_MAX = 1e-3

Step = Generator[str]
"""One actor: it yields before each step that others could come between. Where the runner has a failpoint, its name."""


class StoreUnavailable(Exception):
    """The store takes nothing, or not in time: the run ends, and another tries again."""


def overstated_silences(world: World, planned: SliceRow) -> list[str]:
    """Return where a just planned slice counts more time without an accepted record than there was.

    A partition that lost the records of slices, and was filled again to the end of the slices, looks as if no record
    had arrived. This has no effect, because the job must stop before it computes anything from the next records.
    """
    findings = []
    for partition, ms in planned.silence_ms.get(STREAM, {}).items():
        was_ms = world.log.idle_ms(partition)
        is_cut_off = world.cut is not None and partition in world.cut[0]
        if ms > was_ms * (1 + DRIFT_MAX) + 1 and not is_cut_off:
            findings.append(
                f"watermark: slice {planned.number} counts {ms} ms of silence in {partition}, and it was {was_ms}"
            )
    return findings


class JobRun:
    """One run. It is killed when its next step is not requested."""

    def __init__(self, world: World, run: RunRow) -> None:
        self._world = world
        self._ledger, self._log, self._chance, self._broken = world.ledger, world.log, world.chance, world.broken
        self._run = run
        self._pipeline = world.pipeline(run.version)
        self._windows = shapes_of(world.versions[run.version - 1])

    def steps(self) -> Step:
        """The run from its beginning to its end. Raises Fenced, LedgerUnavailable and LogUnavailable as a real one ends with."""
        run, pipeline = self._run, self._pipeline
        epoch, version = run.epoch, run.version
        rule = pipeline.event_time_rule
        monotonic_ms = self._world.monotonic_clock()
        yield "run.begun"
        yield "rewind.before_plan"
        plan = plan_of_job(self._ledger, pipeline)  # type: ignore[arg-type]  # a twin
        if self._broken == "replays from the latest":
            plan = RewindPlan(plan.slice_committed + 1, plan.slice_committed, plan.emitted)
        if plan.slice_first <= plan.slice_committed:
            self._world.count("rewind")
        if self._broken != "reads over a hole":
            require_log_holds(JOB, rewind_cost(self._ledger, plan, JOB).needed, {STREAM: self._log.starts(STREAM)})  # type: ignore[arg-type]
        yield "rewind.planned"
        continuity = LogContinuity(JOB, STREAM, STREAM, self._log, monotonic_ms)  # type: ignore[arg-type]  # a twin
        continuity.require(self._ledger.last_slice(JOB))
        topics = {dead_letter_topic(JOB): self._world.dead, RESULTS: self._world.results}
        for slot, topic in slots_of_older_runs(self._ledger, run):  # type: ignore[arg-type]  # a twin
            yield "shut an older run out"
            if self._broken != "fences no run":
                topics[topic].take_over(slot)
        slots = self._chance.choice([1, 2, 3])
        self._ledger.set_run_slots(JOB, epoch, slots)
        operators = Operators(self._world.versions[version - 1])
        rows_max = self._chance.choice([15, 60, 10_000])
        settings = PlannerSettings(JOB, version, epoch, (InputStream(STREAM),), rows_max, rule, self._windows)
        meter = SilenceMeter(monotonic_ms)
        planner = SlicePlanner(settings, self._ledger, self._log, self._world.wall_clock, meter, continuity=continuity)  # type: ignore[arg-type]
        done = plan.slice_first - 1
        yield "run.before_query"
        while True:
            yield "look"
            job, last = self._ledger.job(JOB), self._ledger.last_slice(JOB)
            if job.epoch != epoch and self._broken != "is not fenced":
                raise Fenced("a newer run")
            if last is None or last.status is SliceStatus.COMMITTED:
                is_drained_now = is_drained(last, self._ledger.last_checkpoint(JOB), self._windows)
                is_over = job.desired is Desired.DRAINED and is_drained_now
                if is_over or job.version != version:
                    return
            if done < plan.slice_committed:
                end = min(plan.slice_committed, done + self._chance.randint(1, 8))
            else:
                if self._broken != "plans late":
                    yield "plan a slice"
                while self._log.away_ms is not None and self._chance.random() < 0.9:
                    yield "wait for the brokers"
                planned = planner.next_slice()
                if planned is not None and planned != last:
                    if self._chance.random() < 0.01:
                        self._world.count("lose the answer to a plan")
                        raise LedgerUnavailable("the answer to the plan was lost")
                    self._world.findings += overstated_silences(self._world, planned)
                self._world.commits.append(epoch) if planned is not None and planned.epoch == epoch else None
                if planned is None or planned.number <= done:
                    continue
                end = planned.number
            yield from self._batch(run, slots, plan, operators, done + 1, end)
            done = end

    def _batch(self, run: RunRow, slots: int, plan: RewindPlan, operators: Operators, first: int, end: int) -> Step:
        yield "slice.before_action"
        epoch, version, pipeline = run.epoch, run.version, self._pipeline
        slices = self._ledger.slices(JOB, first, end)
        last = slices[-1]
        before = self._ledger.last_checkpoint(JOB)
        rows: list[Record] = []
        refused: list[tuple[int, int, str]] = []
        counted: list[Record] = []
        reached = slices[0].reached
        for one in slices:
            judged = one
            if self._broken == "late by the batch's last slice":
                judged = replace(one, watermark_ms=last.watermark_ms)
            accepted_here, refused_here, all_here = self._judge(judged)
            reached = reached_after(reached, {STREAM: logged_of(accepted_here)})
            latest_ms = latest_of(accepted_here)
            rows += [record for records in accepted_here.values() for record in records]
            refused += refused_here
            counted += all_here
        if end <= plan.slice_committed:
            closes_ms = plan.closed_ms(self._ledger.checkpoint(JOB, end))
        else:
            accepted = accepted_partitions(last, {STREAM: latest_ms})
            known = last.reached if self._broken == "closes by the facts before" else reached
            closes_ms = closes_after(last, known, accepted)
        results = operators.step(rows, closes_ms)
        new: dict[str, Results] = {"short": {}, "minute": {}}
        for key, value in results:
            stage, _, window_end_ms, _ = key
            if self._broken != "emits again" and window_end_ms <= plan.emitted.get(stage, -1):
                continue
            if end <= plan.slice_committed and self._broken != "emits again":
                self._world.findings.append(f"repeated: a replayed slice emits {key}")
            new[stage][key] = value
        emitted_to = before.result_offsets.get(RESULTS, {}).get(0, 0) if before else 0
        dead_from = before.dead_letter_offsets.get(0, 0) if before else 0
        for stage, of_stage in new.items():
            yield from self._tasks(
                spread(of_stage, slots, lambda key: zlib.crc32(key[3].encode())),
                lambda slot, part, stage=stage: self._emit(run, stage, slot, part, emitted_to, dead_from),
            )
        yield "slice.written"
        if end <= plan.slice_committed:
            yield "rewind.replayed"
            return
        yield "commit.before_dead_letters"
        if refused:
            letters = {(partition, offset): reason for partition, offset, reason in refused}
            yield from self._tasks(
                spread(letters, slots, lambda place: place[0]),
                lambda slot, part: self._write_once(
                    self._world.dead, id_of_rejected_records(JOB, slot), part, dead_from, epoch, "dead_letters"
                ),
            )
        dead_end = self._world.dead.settled_end()
        result_end = len(self._world.results.entries)
        while self._world.results.settled_end() < result_end:
            yield "wait until results are settled"
        result_end = self._world.results.settled_end()
        yield "commit.before_checkpoint"
        yield "checkpoint.before_commit"  # within the transaction: what is killed here was never there
        if self._chance.random() < 0.01:
            self._world.count("lose a commit")
            if self._broken == "takes a lost commit for done":
                return
            raise LedgerUnavailable("the commit was lost")
        reasons = [reason for _, _, reason in refused]
        self._ledger.commit_checkpoint(
            CheckpointRow(
                job=JOB,
                slice=end,
                epoch=epoch,
                version=version,
                emitted=emitted_up_to(
                    [(stage.name, shape) for stage, shape in zip(pipeline.stages, self._windows, strict=True)],
                    closes_ms,
                    before.emitted if before else {},
                ),
                latest_event_ms=greatest(before.latest_event_ms if before else None, *(row.event_ms for row in rows)),
                latest_log_ms=greatest(before.latest_log_ms if before else None, *(row.log_ms for row in counted)),
                records=len(counted),
                accepted=len(rows),
                rejected={reason: reasons.count(reason) for reason in sorted(set(reasons))},
                results={},
                dead_letter_offsets={0: dead_end},
                result_offsets={RESULTS: {0: result_end}},
                closes_ms=closes_ms,
                reached=reached,
                accepted_in=accepted_in_after(before, accepted, end),
                committed_ms=self._world.now_ms,
            )
        )
        self._world.commits.append(epoch)
        self._log.note_accepted(accepted_here)
        if self._chance.random() < 0.02:
            self._world.count("lose the answer to a commit")
            raise LedgerUnavailable("the answer to the commit was lost")
        yield "checkpoint.committed"

    def _tasks(self, parts: dict[int, dict[Any, Any]], start: Callable[[int, dict[Any, Any]], Step]) -> Step:
        """One task for each slot, all at once. One whose worker dies, or is lost sight of, is tried again."""
        lost: list[Step] = []
        at_work = {slot: start(slot, part) for slot, part in parts.items()}
        tries = dict.fromkeys(at_work, 1)
        while at_work:
            if lost and self._chance.random() < 0.3:
                try:
                    yield next(lost[-1])
                except (StopIteration, LogUnavailable, StoreUnavailable):
                    lost.pop()
                continue
            slot = self._chance.choice([*at_work])
            step = next(at_work[slot], None)
            if step is None:
                del at_work[slot]
                continue
            yield step
            if self._chance.random() < 0.01 and tries[slot] < TASK_TRIES:
                self._world.count("lose a worker")
                tries[slot] += 1
                if self._chance.random() < 0.5:
                    lost.append(at_work[slot])
                at_work[slot] = start(slot, parts[slot])
                yield "a worker dies"

    def _emit(self, run: RunRow, stage: str, slot: int, results: Results, written_before: int, dead_from: int) -> Step:
        """One task of a stage, as `StageEmission` does it."""
        yield "emit.before_write"
        refused: dict[object, str] = {}
        for key, value in results.items():
            while (answer := self._world.index.create(key, value, run.version, run.epoch)) is not Answer.TAKEN:
                if (
                    answer is Answer.REFUSED
                    or self._broken == f"takes a store that is {answer.name.lower()} for a refusal"
                ):
                    refused["document", key] = "result"
                    self._world.count("refuse a document")
                    break
                if answer is Answer.SHUT or self._chance.random() < 0.05:
                    raise StoreUnavailable(answer.name)
                yield "wait for the store"
            yield "a document"
        if stage == "short":
            place = id_of_result_stream(JOB, stage, RESULTS, slot)
            yield from self._write_once(self._world.results, place, results, written_before, run.epoch, "stream")
        if refused and self._broken != "drops refused documents":
            place = id_of_refused_results(JOB, stage, slot)
            yield from self._write_once(self._world.dead, place, refused, dead_from, run.epoch, "dead_letters")
        yield "emit.written"

    def _write_once(
        self, topic: Topic, place: str, entries: dict[Any, Any], written_before: int, epoch: int, failpoints: str
    ) -> Step:
        """Do as `transactions.Slot` does."""
        if self._ledger.job(JOB).epoch != epoch and self._broken != "asks nobody":
            raise Fenced("a newer run")
        yield "take a slot over"
        hold = topic.hold(place) if self._broken == "takes nothing over" else topic.take_over(place)
        yield f"{failpoints}.taken_over"
        if self._ledger.job(JOB).epoch != epoch and self._broken != "asks nobody":
            raise Fenced("a newer run")
        yield "look where it ends"
        end = len(topic.entries)
        while topic.settled_end() < end:
            yield "wait for open transactions"
        there = dict(topic.committed(written_before, end))
        missing = [one for one in entries.items() if one[0] not in there or self._broken == "writes again"]
        for first in range(0, len(missing), ENTRIES_A_TRANSACTION):
            for identity, value in missing[first : first + ENTRIES_A_TRANSACTION]:
                yield "produce"
                topic.append(hold, identity, value, self._world.now_ms)
            yield f"{failpoints}.before_commit"
            topic.commit(hold)
            yield f"{failpoints}.committed"

    def _require_same_record(self, one: SliceRow, partition: int, offset: int) -> None:
        """Compare the last record of a range as `RangeReader` does.

        The log can be cut off after the run looked at it.
        """
        recorded = one.checksums.get(STREAM, {}).get(partition)
        if recorded is not None and self._log.checksums(STREAM, {partition: offset})[partition] != recorded:
            raise Conflict(f"a task has read another record at offset {offset} of partition {partition}")

    def _judge(self, one: SliceRow) -> tuple[dict[int, list[Record]], list[tuple[int, int, str]], list[Record]]:
        """Partition -> its accepted records; those refused; all."""
        accepted: dict[int, list[Record]] = {}
        refused, everything = [], []
        for partition, end in sorted(one.offsets[STREAM].items()):
            first = one.offsets_first[STREAM].get(partition, 0)
            if end > self._log.seen_to.get(partition, len(self._log.records[partition])):
                raise LogUnavailable(f"partition {partition} ends before {end}")
            removed = self._log.removed.get(partition, 0)
            if first < removed and self._broken != "reads over a hole":
                raise LogTruncated(f"partition {partition} begins at {removed}, and a task reads from {first}")
            for offset in range(max(first, removed), end):
                record = self._log.records[partition][offset]
                everything.append(record)
                reason = reason_against(record, one)
                if reason:
                    refused.append((partition, offset, reason))
                else:
                    accepted.setdefault(partition, []).append(record)
            if max(first, removed) < end:
                self._require_same_record(one, partition, end - 1)
        return accepted, refused, everything


def logged_of(records: dict[int, list[Record]]) -> dict[int, int]:
    """Partition -> how far its records move event time: none further than its log time."""
    return {partition: max(min(one.event_ms, one.log_ms) for one in held) for partition, held in records.items()}


def latest_of(records: dict[int, list[Record]]) -> dict[int, int]:
    """Partition -> the latest event."""
    return {partition: max(record.event_ms for record in held) for partition, held in records.items()}


def reason_against(record: Record, one: SliceRow) -> str:
    """Return the reason why the record can't be used in its slice, or "" if it can."""
    if record.is_broken:
        return "decode"
    if one.rule.max_ahead_ms is not None and record.event_ms > record.log_ms + one.rule.max_ahead_ms:
        return "future_event"
    if one.watermark_ms is not None and record.event_ms < one.watermark_ms:
        return "late"
    return ""


def spread(all_of_them: dict[Any, Any], slots: int, number: Callable[[Any], int]) -> dict[int, dict[Any, Any]]:
    """Slot -> its part, without the empty ones."""
    parts: dict[int, dict[Any, Any]] = defaultdict(dict)
    for key, value in all_of_them.items():
        parts[number(key) % slots][key] = value
    return dict(parts)
