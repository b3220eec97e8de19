"""Checks at the end of a history, with only the log and the ledger. They don't know what the runs have computed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import count, pairwise
from typing import Any

from strandline.core.errors import Conflict
from strandline.ledger.states import SliceRow, SliceStatus
from strandline.processing.slices.continuity import DOUBT_MS, LogContinuity
from tests.simulation.event_time import late_without_cause, wrong_times
from tests.simulation.log import Record
from tests.simulation.run import reason_against
from tests.simulation.versions import JOB, STREAM, Version
from tests.simulation.windows import Key, Sums, add, last_end, windows_of
from tests.simulation.world import World


def simulate(seed: int, **options: Any) -> tuple[World, list[str]]:
    """Run one history; return it, and what is wrong with it."""
    world = World(seed, **options)
    world.run()
    return world, check_world(world)


def check_world(world: World) -> list[str]:
    """Return the problems at the end, found with the log and the ledger alone."""
    findings = list(world.findings)
    if findings:
        return findings
    slices = world.ledger.slices(JOB, 1, world.ledger.slice_count(JOB))
    if world.cut is not None:
        return results_over_a_hole(world, slices)
    if world.stopped_by:  # the slice that was planned last may be half done
        slices = slices[: len(slices) - (slices[-1].status is SliceStatus.PLANNED)]
    accepted: list[Record] = []
    dead: dict[object, str] = {}
    seen = 0
    for one in slices:
        for partition, end in one.offsets[STREAM].items():
            for offset in range(one.offsets_first[STREAM].get(partition, 0), end):
                record = world.log.records[partition][offset]
                seen += 1
                reason = reason_against(record, one)
                if reason:
                    dead[partition, offset] = reason
                else:
                    accepted.append(record)
    if seen != sum(map(len, world.log.records)):
        findings.append(f"lost: {seen} records are in slices, {sum(map(len, world.log.records))} in the log")
    totals = world.ledger.totals(JOB)
    if (totals.records, totals.accepted) != (seen, len(accepted)):
        findings.append(f"wrong: the ledger counts {totals}, there are {seen} records, {len(accepted)} accepted")
    if any(before > after for before, after in pairwise(world.commits)):
        findings.append("wrong: an old run wrote after a newer one")
    findings += [f"repeated: {key} was overwritten" for key, held in world.index.documents.items() if held.writes > 1]
    findings += wrong_times(world, slices)
    findings += late_without_cause(world, slices)
    findings += uncovered(world, accepted)
    computed = expected_index(world, slices, accepted)
    refused = {("document", key): "result" for key in computed if world.index.refuses(key)}
    findings += compare("dead letter", dead | refused, world.dead.committed(0))
    in_stream = {key: value for key, value in computed.items() if key[0] == "short"}
    findings += compare("result in the stream", in_stream, world.results.committed(0))
    in_index = {key: value for key, value in computed.items() if ("document", key) not in refused}
    found = [(key, held.value) for key, held in world.index.documents.items()]
    findings += compare("document", in_index, found)
    if world.stopped_by:
        return [one for one in findings if not one.startswith("lost") and "nothing leads to it" not in one]
    return findings


def results_over_a_hole(world: World, slices: list[SliceRow]) -> list[str]:
    """Return the results that were computed over a hole in the log.

    A log that lost records of slices, or belongs to another topic, must stop the job. It must do so at the next start
    at the latest, and before the job computes anything from later records at the same offsets.
    """
    assert world.cut is not None
    partitions, number = world.cut
    findings = [
        f"wrong: slice {one.number} goes on in partition {partition}, which was cut off behind slice {number}"
        for one in slices[number:]
        for partition in one.offsets[STREAM].keys() & partitions
        if one.offsets[STREAM][partition] > one.offsets_first[STREAM].get(partition, 0)
    ]
    try:
        if not world.stopped_by:
            continuity = LogContinuity(JOB, STREAM, STREAM, world.log, count(0, DOUBT_MS).__next__)  # type: ignore[arg-type]  # a twin
            continuity.require(world.ledger.last_slice(JOB))
            findings.append(f"wrong: {partitions} were cut off behind slice {number}, and the job can start again")
    except Conflict:
        pass
    return findings


def compare(what: str, expected: Mapping[Any, object], found: Sequence[tuple[Any, object]]) -> list[str]:
    """Compare the expected entries with those that exist: each must exist once and be equal."""
    times = Counter(key for key, _ in found)
    return [
        *(f"lost: {what} {key}" for key in expected if key not in times),
        *(f"repeated: {what} {key} is there {count} times" for key, count in times.items() if count > 1),
        *(f"wrong: {what} {key} is there, and nothing leads to it" for key in times if key not in expected),
        *(
            f"wrong: {what} {key} is {value}, expected {expected[key]}"
            for key, value in found
            if key in expected and value != expected[key]
        ),
    ]


def expected_index(world: World, slices: list[SliceRow], accepted: list[Record]) -> dict[Key, tuple[int, int]]:
    """Each window by the version whose checkpoint closed it: what ends after all that its stage had emitted, up to there.

    A version with windows of another size goes on, whole windows only, where the one before it had come.
    """
    expected: dict[Key, tuple[int, int]] = {}
    sums_by: dict[int, Sums] = {}
    """Version -> its windows over all records, whichever of them it closes."""
    emitted_ms: dict[str, int] = {}
    for one in slices:
        checkpoint = world.ledger.checkpoint(JOB, one.number)
        if checkpoint.closes_ms is None:
            continue
        version = world.versions[checkpoint.version - 1]
        due = {
            stage: (emitted_ms.get(stage, 0), last_end(shape, checkpoint.closes_ms))
            for stage, shape in version.windows.items()
        }
        emitted_ms = {stage: max(bounds) for stage, bounds in due.items()}
        if all(from_ms >= to_ms for from_ms, to_ms in due.values()):
            continue
        if checkpoint.version not in sums_by:
            sums_by[checkpoint.version] = sums_of(version, accepted)
        for key, (n, total) in sums_by[checkpoint.version].items():
            from_ms, to_ms = due[key[0]]
            if from_ms < key[2] <= to_ms:
                expected[key] = n, total
    return expected


def sums_of(version: Version, accepted: list[Record]) -> Sums:
    """All windows of the version that hold one of these records."""
    sums: Sums = {}
    for record in accepted:
        if record.power < version.below:
            for stage, start, end in windows_of(version, record.event_ms):
                add(sums, (stage, start, end, record.device), 1, record.power)
    return sums


def refused_documents(world: World) -> list[Key]:
    """Return the keys that have a dead letter instead of a document."""
    return [one[1] for one, _ in world.dead.committed(0) if isinstance(one, tuple) and one[0] == "document"]


def uncovered(world: World, accepted: list[Record]) -> list[str]:
    """Records that every version would use, and that no window of a stage holds.

    Versions whose short windows differ may count a record in different minutes: one has emitted the minute of another. Such a
    record may be in no minute.
    """
    spans: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    """Stage and device -> its windows."""
    for stage, start, end, device in [*world.index.documents, *refused_documents(world)]:
        spans[stage, device].append((start, end))
    below = min(version.below for version in world.versions)
    shorts = [version.short for version in world.versions]
    # A short window that slides may lie in the minute after its record's, and in that one only.
    beyond_ms = {"short": 0, "minute": max((one.size_ms for one in shorts if one.size_ms > one.every_ms), default=0)}
    return [
        f"lost: {record} is in no window of stage {stage}"
        for stage in ("short", "minute")
        for record in accepted
        if record.power < below
        and not any(start - beyond_ms[stage] <= record.event_ms < end for start, end in spans[stage, record.device])
        and (stage == "short" or len({minutes_of(version, record.event_ms) for version in world.versions}) == 1)
    ]


def minutes_of(version: Version, event_ms: int) -> frozenset[int]:
    """Return the starts of the minutes in which the version counts a record of that time."""
    return frozenset(start for stage, start, _ in windows_of(version, event_ms) if stage == "minute")
