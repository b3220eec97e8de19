"""One history: the job records its slices, and then the same log is processed again in other ways. Nothing may differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from strandline.ledger.states import CheckpointRow, SliceKind, SliceStatus
from tests.simulation.chance import Chance
from tests.simulation.samples.history import HOUR_MS, MINUTE_MS, START_MS, STREAM, History, draw_history
from tests.simulation.samples.job import How, Planning, Recorded, Run, record
from tests.simulation.samples.oracle import (
    IN_TIME,
    REVISES,
    WITHIN_MS,
    Decisions,
    decide,
    expected,
    found_in,
    steps_of,
)
from tests.simulation.samples.pipelines import JOB, draw_counters, draw_revised
from tests.simulation.samples.store import Store, different

WHOLE = 1_000
"""More records than a history has."""
BLOCK = 20
UNREADABLE = {"decode": "unreadable", "schema": "unreadable"}
EXECUTIONS = (
    "a run is killed before a checkpoint",
    "a run is killed after a checkpoint",
    "a rewind",
    "a rewind in several batches",
    "a rewind that reads kept records again",
    "a rewind that reads an upload again",
    "a rewind that reads the other side of a reset again",
    "a rewind that reads late records again",
    "a start from a snapshot",
    "a restore in one batch",
    "a restore in several batches",
    "several buckets",
    "records in small chunks",
    "groups in segments",
    "another planning",
    "another planning with the same late records",
    "another planning with other late records",
)
STATES = (
    "a slice that is behind",
    "a slice without records",
    "an increase across slices",
    "a reset between two slices",
    "a late record",
    "a late record that was kept",
    "a late record of an upload",
    "a late record that was sent twice",
    "a late record before a reset",
    "a late record that revises",
    "a result that a late record creates",
    "a revision",
    "a revision by a kept record",
    "a revision by an upload",
    "a window that is revised in several slices",
    "a window that is revised by several records at once",
)


@dataclass
class Outcome:
    findings: list[str] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    """What has happened, how often."""


def simulate(seed: int) -> Outcome:
    """Run one history. The seeds of a block have one pipeline, because a process works faster on one than on several by turns."""
    history, chance, outcome = draw_history(seed), Chance(f"how {seed}"), Outcome()
    outcome.happened.update({name: 1 for name, count in history.faults.items() if count})
    block, of_block = seed // BLOCK, Chance(f"pipeline {seed // BLOCK}")
    setup = draw_revised(of_block) if block % 2 == 0 else draw_counters(of_block)
    recorded = record(history, setup, _planning(chance, history), chance)
    decisions = decide(history.log, recorded.slices, setup.revise_ms)
    _count(outcome.happened, recorded, decisions)
    outcome.findings += recorded.store.findings
    outcome.findings += against_definitions(recorded, decisions)
    dice = chance.random()
    if dice < 0.4:
        outcome.findings += recovered(recorded, chance, decisions, outcome.happened)
    else:
        outcome.findings += restored(recorded, chance, outcome.happened)
    if dice > 0.96:
        outcome.findings += planned_otherwise(history, recorded, decisions, chance, outcome.happened)
    return outcome


def _planning(chance: Chance, history: History) -> Planning:
    last_ms = max(record.reading.came_ms for record in history.log.records)
    count = chance.choice([1, 1, 1, 1, 2])
    looks_ms = sorted(START_MS + chance.randrange(last_ms - START_MS) for _ in range(count))
    if history.kafka_away is not None:  # while Kafka is away, a look fails
        away = history.kafka_away
        looks_ms = sorted(away.end_ms + chance.randrange(MINUTE_MS) if away.holds(one) else one for one in looks_ms)
    looks_ms.append(max(last_ms, *looks_ms, 0) + chance.choice([1, 20 * MINUTE_MS, 3 * HOUR_MS]))
    restarts = frozenset(at for at in range(1, len(looks_ms)) if chance.random() < 0.2)
    return Planning(tuple(looks_ms), restarts, 30 if chance.random() < 0.05 else 1_000)


def _how(chance: Chance, happened: Counter[str]) -> How:
    how = How(
        buckets=chance.choice([1, 1, 1, 1, 1, 1, 2, 3]),
        tasks=chance.choice([1, 3]),
        chunk_records=chance.choice([None, None, None, None, None, None, 9]),
        replay_rows=chance.choice([WHOLE, WHOLE, WHOLE, WHOLE, 40, 1]),
        has_segments=chance.random() < 0.3,
    )
    happened["several buckets"] += how.buckets > 1
    happened["records in small chunks"] += how.chunk_records is not None
    happened["groups in segments"] += how.has_segments
    return how


def against_definitions(recorded: Recorded, decisions: Decisions) -> Iterator[str]:
    """Compare the store with the definitions."""
    setup, store = recorded.setup, recorded.store
    letters = {identity: UNREADABLE.get(one.reason, one.reason) for identity, one in store.letters.items()}
    rejected = {
        f"{STREAM}/{partition}/{offset}": what
        for (partition, offset), what in decisions.of.items()
        if what not in (IN_TIME, REVISES)
    }
    yield from different("dead letter", rejected, letters)
    lines = {f"{STREAM}/{one.partition}/{one.offset}": one.line for one in recorded.log.records}
    yield from different("value of a dead letter", {key: lines[key] for key in letters}, _values(store))
    slices = {f"{STREAM}/{place[0]}/{place[1]}": number for place, number in decisions.slices.items()}
    emitted = {identity: one.emission for identity, one in store.letters.items()}
    yield from different("slice of a dead letter", {key: slices[key] for key in letters}, emitted)
    found = found_in(setup, {key: one.source for key, one in store.results.items()})
    yield from different("result", expected(setup, decisions.taken), found)
    if len(decisions.of) != sum(1 for _ in recorded.log.records):
        yield f"lost: {len(decisions.of)} records are in slices"


def _values(store: Store) -> dict[str, bytes | None]:
    return {identity: one.value for identity, one in store.letters.items()}


def recovered(recorded: Recorded, chance: Chance, decisions: Decisions, happened: Counter[str]) -> Iterator[str]:
    """A run was killed, and another one goes on to the end, with the same slices."""
    slices, checkpoints = recorded.slices, recorded.checkpoints
    committed = max(chance.randrange(len(slices)), chance.randrange(len(slices)))
    is_half_done = chance.random() < 0.6
    ledger = recorded.ledger.branch(committed, has_planned=is_half_done)
    store = recorded.store.up_to(committed, chance, chance.choice([0.5, 1.0]) if is_half_done else 0.0)
    happened["a run is killed before a checkpoint" if is_half_done else "a run is killed after a checkpoint"] += 1
    how = _how(chance, happened)
    snapshot = None
    run = Run(recorded.setup, ledger, recorded.log, store, how, chance)
    if committed and chance.random() < 0.35:
        number = chance.randint(max(run.plan.slice_first - 1, 1), committed)
        snapshot, how = recorded.snapshots[number], how._replace(buckets=1, has_segments=False)
        happened["a start from a snapshot"] += 1
        run = Run(recorded.setup, ledger, recorded.log, store, how, chance, snapshot=snapshot)
    elif run.plan.slice_first <= committed:
        happened["a rewind"] += 1
        _count_replayed(happened, decisions, run.plan.slice_first, committed)
        happened["a rewind in several batches"] += how.replay_rows < WHOLE and committed > run.plan.slice_first
    yield from _continued(run, recorded, committed)
    yield from different("document", recorded.store.written, store.written)
    yield from different("dead letter", recorded.store.letters, store.letters)
    yield from store.findings
    again = [_facts(one) for one in ledger._checkpoints[JOB]]
    if again != [_facts(one) for one in checkpoints]:
        yield f"wrong: the checkpoints are {again}, expected {[_facts(one) for one in checkpoints]}"


def _continued(run: Run, recorded: Recorded, committed: int) -> Iterator[str]:
    run.replay()
    for wanted in recorded.slices[committed:]:
        last = run.ledger.last_slice(JOB)
        row = last
        if last is None or last.status is SliceStatus.COMMITTED:
            row = replace(wanted, epoch=run.row.epoch, status=SliceStatus.PLANNED)
            run.ledger.plan_slice(row)
        assert row is not None and row.number == wanted.number
        run.ledger.commit_checkpoint(run.process(row))
    if run.ledger.last_checkpoint(JOB) is None:
        yield "lost: nothing is committed"


def _facts(row: CheckpointRow) -> dict[str, object]:
    """A checkpoint without what depends on the run: its epoch, and where in the stream its dead letters end."""
    return {**vars(row), "epoch": 0, "committed_ms": 0, "dead_letter_offsets": {}}


def restored(recorded: Recorded, chance: Chance, happened: Counter[str]) -> Iterator[str]:
    """A store has lost what slices have written since one of them: it is computed again, in large batches."""
    first = chance.choice([1, 1, chance.randint(1, len(recorded.slices))])
    store = Store()
    how = _how(chance, happened)
    ledger = recorded.ledger.branch(len(recorded.slices), has_planned=False)
    run = Run(recorded.setup, ledger, recorded.log, store, how, chance, restores_from=first)
    run.replay()
    happened["a restore in several batches" if how.replay_rows < WHOLE else "a restore in one batch"] += 1
    wanted = {key: one.body for key, one in recorded.store.results.items() if one.emission >= first}
    yield from different("restored document", wanted, {key: one.body for key, one in store.results.items()})
    known = {key: one.body for key, one in recorded.store.written.items()}
    found = {key: one.body for key, one in store.written.items()}
    yield from different("restored version", {key: known.get(key) for key in found}, found)
    yield from different("restored dead letter", {}, store.letters)
    yield from store.findings


def planned_otherwise(
    history: History, recorded: Recorded, decisions: Decisions, chance: Chance, happened: Counter[str]
) -> Iterator[str]:
    """The job was planned at other times, so other records may be late. All other results are the same."""
    setup = recorded.setup
    other = record(history, setup, _planning(chance, history), chance)
    others = decide(history.log, other.slices, setup.revise_ms)
    happened["another planning"] += 1
    yield from other.store.findings
    yield from against_definitions(other, others)
    differing = {place for place, what in decisions.of.items() if others.of[place] != what}
    happened[f"another planning with {'other' if differing else 'the same'} late records"] += 1
    meters = {one.reading.meter for one in history.log.records if (one.partition, one.offset) in differing}
    if differing and not setup.by:
        return
    keep = _of_others(meters)
    one, two = (
        {key: held.body for key, held in job.store.results.items() if keep(held.body)} for job in (recorded, other)
    )
    yield from different("document with other slices", one, two)


def _of_others(meters: set[str]) -> Callable[[bytes], bool]:
    names = [f'"meter":"{meter}"'.encode() for meter in meters]
    return lambda body: not any(name in body for name in names)


def _count_replayed(happened: Counter[str], decisions: Decisions, first: int, last: int) -> None:
    replayed = [row for row in decisions.taken if first <= row.slice <= last]
    happened["a rewind that reads kept records again"] += any(row.reading.way == "kept" for row in replayed)
    happened["a rewind that reads an upload again"] += any(row.reading.way == "upload" for row in replayed)
    happened["a rewind that reads late records again"] += any(row.is_late for row in replayed)
    values = [row.reading.wh for row in replayed if row.reading.wh is not None]
    happened["a rewind that reads the other side of a reset again"] += any(a > b for a, b in pairwise(values))


def _count(happened: Counter[str], recorded: Recorded, decisions: Decisions) -> None:
    setup = recorded.setup
    happened["histories"] += 1
    happened["slices"] += len(recorded.slices)
    happened["records"] += len(decisions.of)
    happened["results"] += len(recorded.store.results)
    happened["dead letters"] += len(recorded.store.letters)
    happened["a slice that is behind"] += any(row.kind is SliceKind.CATCH_UP for row in recorded.slices)
    happened["a slice without records"] += any(row.kind is SliceKind.IDLE for row in recorded.slices)
    late = [one for one in recorded.log.records if decisions.of[one.partition, one.offset] == "late"]
    happened["a late record"] += len(late)
    happened["a late record that was kept"] += sum(one.reading.way == "kept" for one in late)
    happened["a late record of an upload"] += sum(one.reading.way == "upload" for one in late)
    accepted = {row.reading[2:6] for row in decisions.taken}
    happened["a late record that was sent twice"] += sum(one.reading[2:6] in accepted for one in late)
    if setup.is_revised:
        _count_revisions(happened, recorded, decisions)
        return
    steps = list(steps_of(decisions.taken, WITHIN_MS[setup.form]))
    late_meters = {one.reading.meter for one in late}
    for step in steps:
        if step.before is None or step.used is None:
            continue
        is_reset = step.row.reading.wh < step.before.reading.wh  # type: ignore[operator]  # both have a value
        across = step.before.slice != step.row.slice
        happened["an increase across slices"] += across
        happened["a reset between two slices"] += across and is_reset
        happened["a late record before a reset"] += is_reset and step.row.reading.meter in late_meters


def _count_revisions(happened: Counter[str], recorded: Recorded, decisions: Decisions) -> None:
    revising = [row for row in decisions.taken if row.is_late]
    versions = Counter(key for key, _ in recorded.store.written)
    happened["a late record that revises"] += len(revising)
    firsts = dict(sorted(recorded.store.written, reverse=True))
    happened["a result that a late record creates"] += sum(number > 1 for number in firsts.values())
    happened["a revision"] += sum(versions.values()) - len(versions)
    happened["a window that is revised in several slices"] += sum(count > 2 for count in versions.values())
    if sum(versions.values()) > len(versions):
        happened["a revision by a kept record"] += any(row.reading.way == "kept" for row in revising)
        happened["a revision by an upload"] += any(row.reading.way == "upload" for row in revising)
    ordered = sorted(recorded.store.written)
    happened["a window that is revised by several records at once"] += sum(
        key == other and later - earlier > 1 for (key, earlier), (other, later) in pairwise(ordered)
    )


def shown(seed: int, findings: Sequence[str]) -> str:
    return f"seed {seed}: " + "; ".join(one[:500] for one in findings[:4])
