"""Says whether a job kept its word, from a dump of all it left behind. Shares no code with the platform: it has its own
reading of a record, its own lateness, windows and cascade, its own document ids.

It knows the pipeline of `work.py`, and from the docs: how a slice decides lateness (docs/ledger.md), what a dead letter
and a document are, and that a document's id is a hash of job, stage, window and key.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from tests.support.chaos.dump import Dump, Record, Row

TEN_SECONDS_MS, MINUTE_MS = 10_000, 60_000
DELAY_MS = IDLE_MS = 10_000
MAX_AHEAD_MS = 300_000
RULE = {"delay_ms": DELAY_MS, "idle_timeout_ms": IDLE_MS, "max_ahead_ms": MAX_AHEAD_MS, "watermark": "partitions"}
STAGES = {"ten_seconds": TEN_SECONDS_MS, "per_minute": MINUTE_MS}
FIELDS = ("id", "client", "site", "ts", "power", "rated", "count", "cost")
SHOWN_MAX = 5

Key = tuple[str, int, tuple[str, ...]]
"""A result: stage, window end, by fields."""


@dataclass
class JobVerdict:
    """What was found. The lists hold violations, each a sentence; all empty is a pass."""

    records: int = 0
    accepted: int = 0
    late: int = 0
    refused: int = 0
    """Dead letters for another reason than being late."""
    expected: int = 0
    """Results that have to be in the index."""
    slices: int = 0
    epochs: int = 0
    lost: list[str] = field(default_factory=list)
    """A result, or a dead letter, that has to be there and is not."""
    repeated: list[str] = field(default_factory=list)
    """A result or dead letter that is there twice, or was written over."""
    wrong: list[str] = field(default_factory=list)
    """Another value, place, id or origin than the log and the ledger say."""
    foreign: list[str] = field(default_factory=list)
    """A result or dead letter that nothing in the log explains."""
    accounts: list[str] = field(default_factory=list)
    """Counts in the ledger that don't add up."""
    ledger: list[str] = field(default_factory=list)
    """Slices and checkpoints that can't be: gaps, cuts that go back, an old epoch after a new one."""
    divergence: list[str] = field(default_factory=list)
    """The job itself found another value in the index than it computed."""

    KINDS = ("lost", "repeated", "wrong", "foreign", "accounts", "ledger", "divergence")

    @property
    def violations(self) -> list[str]:
        return [sentence for kind in self.KINDS for sentence in getattr(self, kind)]

    def __str__(self) -> str:
        counts = (
            f"{self.records} records in {self.slices} slices by {self.epochs} runs: {self.accepted} accepted, {self.late} late, "
            f"{self.refused} refused; {self.expected} results"
        )
        lines = [
            f"{kind} {len(found)}: " + "; ".join(found[:SHOWN_MAX])
            for kind in self.KINDS
            if (found := getattr(self, kind))
        ]
        return "\n".join([counts, *lines])


def check_job(dump: Dump, job: str, stream: str) -> JobVerdict:
    """Compare what is there with what has to be there.

    1. The slices: one chain over the log from its beginning, committed in order, by epochs that only rise.
    2. Each record, by its slice: used, or refused and why. The watermarks and what each slice closes follow from those used.
    3. The dead letters: those refused, each once, with its bytes.
    4. Windows and cascade over those used; the documents: each result of a closed window, once, right, at its place.
    5. The results in the stream: those of the first stage, each once, and the same.
    6. The accounts of every slice.
    """
    verdict = JobVerdict(records=len(dump.records))
    slices, checkpoints = dump.tables["slices"], {row["slice"]: row for row in dump.tables["checkpoints"]}
    _check_slices(dump, slices, checkpoints, stream, verdict)
    judged = list(_judge_all(dump.records, slices, stream, verdict))
    closers = _closers(_check_thresholds(judged, slices, checkpoints, stream, verdict))
    _check_dead_letters(dump.dead_letters, judged, stream, slices, checkpoints, verdict)
    results = _cascade(judged)
    _check_documents(dump, job, results, closers, slices, checkpoints, verdict)
    if dump.results is not None:
        _check_stream(dump.results, dump.documents, verdict)
    _check_accounts(judged, results, closers, checkpoints, verdict)
    verdict.divergence += [event["message"] for event in dump.tables["events"] if "divergence" in str(event["facts"])]
    return verdict


# --- The slices


def _check_slices(dump: Dump, slices: list[Row], checkpoints: dict[int, Row], stream: str, verdict: JobVerdict) -> None:
    verdict.slices, verdict.epochs = len(slices), len(dump.tables["runs"])
    say = verdict.ledger.append
    if [row["epoch"] for row in dump.tables["runs"]] != list(range(1, verdict.epochs + 1)):
        say(f"runs have the epochs {[row['epoch'] for row in dump.tables['runs']]}")
    started_ms = {row["epoch"]: row["started_ms"] for row in dump.tables["runs"]}
    first_offsets = {str(partition): 0 for partition in {record.partition for record in dump.records}}
    before: Row = {"number": 0, "epoch": 0, "offsets": {stream: first_offsets}, "watermark_ms": None}
    committed_by = 0
    for row in slices:
        name = f"slice {row['number']}"
        if row["number"] != before["number"] + 1:
            say(f"{name} follows {before['number']}")
        starts, ends = row["offsets_first"][stream], row["offsets"][stream]
        known = before["offsets"][stream]
        if any(starts.get(partition, 0) != offset for partition, offset in known.items()):
            say(f"{name} begins at {starts}, the one before ends at {known}")
        if any(ends[partition] < offset for partition, offset in starts.items()):
            say(f"{name} ends at {ends}, before it begins at {starts}")
        if before["watermark_ms"] is not None and (row["watermark_ms"] or 0) < before["watermark_ms"]:
            say(f"{name} has watermark_ms {row['watermark_ms']}, the one before {before['watermark_ms']}")
        if row["epoch"] < committed_by:
            say(f"{name} was planned by epoch {row['epoch']}, after epoch {committed_by} had committed")
        done = checkpoints.get(row["number"])
        if (done is not None) != (row["status"] == "committed"):
            say(f"{name} is {row['status']}, and its checkpoint is {'there' if done else 'not there'}")
        if done is not None:
            if done["epoch"] < max(committed_by, row["epoch"]):
                say(
                    f"{name} was committed by epoch {done['epoch']} after epoch {max(committed_by, row['epoch'])} had begun"
                )
            later = started_ms.get(done["epoch"] + 1)
            if later is not None and done["committed_ms"] > later:
                say(f"{name} was committed by epoch {done['epoch']} when epoch {done['epoch'] + 1} had started")
            for stage, size_ms in STAGES.items():
                closed = None if done["closes_ms"] is None else done["closes_ms"] // size_ms * size_ms
                if done["emitted"].get(stage) != closed:
                    say(f"{name} says that {stage} emitted up to {done['emitted'].get(stage)}; it closes {closed}")
            committed_by = done["epoch"]
        elif row is not slices[-1]:
            say(f"{name} was never committed, and others follow it")
        before = row
    for number in checkpoints.keys() - {row["number"] for row in slices}:
        say(f"a checkpoint says that slice {number} is committed, and there is no such slice")
    if len(checkpoints) != len(dump.tables["checkpoints"]):
        say("a slice has two checkpoints")


def _check_thresholds(
    judged: list[Judged], slices: list[Row], checkpoints: dict[int, Row], stream: str, verdict: JobVerdict
) -> dict[int, int | None]:
    """The watermark of each slice, and what it closes, by docs/ledger.md: from the records that were used and the silences that
    are recorded. Returns slice -> up to where it closes windows, also of a slice that is not committed."""
    say = verdict.ledger.append
    used: dict[int, dict[int, int]] = defaultdict(dict)
    for one in judged:
        if one.reason in (None, "expression") and one.event_ms is not None:
            partition = one.record.partition
            used[one.slice][partition] = max(one.event_ms, used[one.slice].get(partition, one.event_ms))
    reached: dict[int, int] = {}
    closed_ms: int | None = None
    closes_ms: dict[int, int | None] = {}
    for row in slices:
        name, number = f"slice {row['number']}", row["number"]
        silence_ms = {int(partition): ms for partition, ms in row["silence_ms"].get(stream, {}).items()}
        if row["rule"] != RULE:
            say(f"{name} has the rule {row['rule']}, the pipeline says {RULE}")
        if row["reached"].get(stream, {}) != {str(partition): ms for partition, ms in reached.items()}:
            say(f"{name} says that event time had come to {row['reached']}, it was {reached}")
        expected_ms = _latest(closed_ms, _watermark(reached, silence_ms))
        is_past_all = row["kind"] == "drain" and (row["watermark_ms"] or 0) >= (expected_ms or 0)
        if row["watermark_ms"] != expected_ms and not is_past_all:
            say(f"{name} has the watermark {row['watermark_ms']}, expected {expected_ms}")
        for partition, event_ms in used[number].items():
            reached[partition] = max(event_ms, reached.get(partition, event_ms))
        closed_ms = closes_ms[number] = _latest(row["watermark_ms"], _watermark(reached, silence_ms))
        done = checkpoints.get(number)
        if done is not None and done["closes_ms"] != closed_ms:
            say(f"{name} closes windows up to {done['closes_ms']}, expected {closed_ms}")
    return closes_ms


def _latest(*moments_ms: int | None) -> int | None:
    return max((moment_ms for moment_ms in moments_ms if moment_ms is not None), default=None)


def _watermark(reached: dict[int, int], silence_ms: dict[int, int]) -> int | None:
    if not reached:
        return None
    awake = [event_ms for partition, event_ms in reached.items() if silence_ms.get(partition, 0) < IDLE_MS]
    if awake:
        return min(awake) - DELAY_MS
    return max(reached.values()) + min(silence_ms[partition] for partition in reached) - IDLE_MS - DELAY_MS


# --- What becomes of a record


@dataclass
class Judged:
    record: Record
    slice: int
    reason: str | None
    """Why it is a dead letter; None when it is used."""
    event_ms: int | None = None
    """Known where the record could be read."""
    member: Row | None = None
    """The record where a window counts it; None where it is refused or filtered out."""


def _judge_all(records: list[Record], slices: list[Row], stream: str, verdict: JobVerdict) -> Iterator[Judged]:
    by_partition: dict[int, list[tuple[int, Row]]] = defaultdict(list)
    for row in slices:
        for partition, end in row["offsets"][stream].items():
            by_partition[int(partition)].append((end, row))
    places = dict.fromkeys(by_partition, 0)
    for record in records:
        ends = by_partition[record.partition]
        at = places.get(record.partition, 0)
        while at < len(ends) and ends[at][0] <= record.offset:
            at += 1
        places[record.partition] = at
        if at == len(ends):
            verdict.lost.append(f"record {record.partition}/{record.offset} is in no slice")
            continue
        judged = _judge(record, ends[at][1])
        if judged.reason is None:
            verdict.accepted += 1
        elif judged.reason == "late":
            verdict.late += 1
        else:
            verdict.refused += 1
        yield judged


def _judge(record: Record, row: Row) -> Judged:
    number = row["number"]
    try:
        parsed = json.loads(record.value.decode("utf-8"), parse_constant=_refuse)
    except ValueError:
        return Judged(record, number, "decode")
    if not isinstance(parsed, dict) or not _fits(parsed):
        return Judged(record, number, "schema")
    event_ms = parsed["ts"]
    if event_ms - record.log_time_ms > MAX_AHEAD_MS:
        return Judged(record, number, "future_event", event_ms)
    if row["watermark_ms"] is not None and event_ms < row["watermark_ms"]:
        return Judged(record, number, "late", event_ms)
    if parsed["rated"] == 0:
        return Judged(record, number, "expression", event_ms)
    parsed["load"] = parsed["power"] / parsed["rated"]
    return Judged(record, number, None, event_ms, parsed if parsed["load"] < 10 else None)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _fits(parsed: Row) -> bool:
    """Whether it has every field, each of its type. A cost may come as text, so that no digit is lost."""
    if any(parsed.get(name) is None for name in FIELDS):
        return False
    numbers = [parsed[name] for name in ("ts", "power", "rated", "count")]
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers):
        return False
    if not all(isinstance(parsed[name], str) for name in ("id", "client", "site", "cost")):
        return False
    return isinstance(parsed["ts"], int) and isinstance(parsed["count"], int) and parsed["power"] >= 0


# --- Dead letters


def _check_dead_letters(
    letters: list[Record],
    judged: list[Judged],
    stream: str,
    slices: list[Row],
    checkpoints: dict[int, Row],
    verdict: JobVerdict,
) -> None:
    expected = {f"{stream}/{one.record.partition}/{one.record.offset}": one for one in judged if one.reason}
    seen: Counter[str] = Counter()
    for letter in letters:
        key = (letter.key or b"").decode(errors="replace")
        seen[key] += 1
        one = expected.get(key)
        if one is None:
            verdict.foreign.append(f"dead letter {letter.offset} is for {key}, which is no record that is refused")
            continue
        if seen[key] > 1:
            verdict.repeated.append(f"dead letter {letter.offset} is for {key}, for which there is another")
        coordinates = "/".join(letter.headers.get(name, "") for name in ("stream", "partition", "offset"))
        if letter.value != one.record.value or letter.headers.get("reason") != one.reason or coordinates != key:
            verdict.wrong.append(f"dead letter {letter.offset} for {key} ({one.reason}) is {letter}")
    for key in expected.keys() - seen.keys():
        if expected[key].slice in checkpoints:
            verdict.lost.append(f"record {key} is refused ({expected[key].reason}) and has no dead letter")


# --- Windows and documents


@dataclass
class Result:
    end_ms: int
    by: dict[str, str]
    values: Row


def _cascade(judged: list[Judged]) -> dict[Key, Result]:
    """Every result of both stages, closed or not."""
    windows: dict[tuple[int, str, str], list[Row]] = defaultdict(list)
    for one in judged:
        if one.member is not None and one.event_ms is not None:
            end_ms = one.event_ms // TEN_SECONDS_MS * TEN_SECONDS_MS + TEN_SECONDS_MS
            windows[end_ms, one.member["site"], one.member["client"]].append(one.member)
    results: dict[Key, Result] = {}
    minutes: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for (end_ms, site, client), members in windows.items():
        loads, powers = [row["load"] for row in members], [float(row["power"]) for row in members]
        values = {
            "n": len(members),
            "load": math.fsum(loads) / len(loads),
            "peak": max(powers),
            "low": min(powers),
            "total": sum(row["count"] for row in members),
            "cost": sum((Decimal(row["cost"]) for row in members), Decimal(0)),
        }
        results["ten_seconds", end_ms, (site, client)] = Result(end_ms, {"site": site, "client": client}, values)
        minutes[(end_ms - 1) // MINUTE_MS * MINUTE_MS + MINUTE_MS, site].append(values)
    for (end_ms, site), parts in minutes.items():
        values = {
            "n": sum(part["n"] for part in parts),
            "clients": len(parts),
            "load": math.fsum(part["load"] for part in parts) / len(parts),
            "peak": max(part["peak"] for part in parts),
            "total": sum(part["total"] for part in parts),
            "cost": sum((part["cost"] for part in parts), Decimal(0)),
        }
        results["per_minute", end_ms, (site,)] = Result(end_ms, {"site": site}, values)
    return results


def _check_documents(
    dump: Dump,
    job: str,
    results: dict[Key, Result],
    closers: _closers,
    slices: list[Row],
    checkpoints: dict[int, Row],
    verdict: JobVerdict,
) -> None:
    planned = {row["number"]: row for row in slices}
    expected: dict[str, tuple[Key, int]] = {}
    for key, result in results.items():
        closer = closers.of(result.end_ms)
        if closer is not None:
            expected[_document_id(job, key)] = (key, closer)
    verdict.expected = sum(closer in checkpoints for _, closer in expected.values())
    seen: Counter[str] = Counter()
    for document in dump.documents:
        identity = document["_id"]
        seen[identity] += 1
        name = f"document {identity} of {document['_index']}"
        if seen[identity] > 1:
            verdict.repeated.append(f"{name} is in another index too")
        if document["_version"] != 1:
            verdict.repeated.append(f"{name} was written {document['_version']} times")
        found = expected.get(identity)
        if found is None:
            verdict.foreign.append(f"{name} is no result of a window that is closed: {document['_source']}")
            continue
        key, closer = found
        # A slice that was planned and not committed may have been written already, all of it or a part.
        done = checkpoints.get(closer)
        epochs = (planned[closer]["epoch"], done["epoch"] if done else verdict.epochs)
        for problem in _differences(document, job, key, results[key], closer, epochs):
            verdict.wrong.append(f"{name}: {problem}")
    for identity, (key, closer) in expected.items():
        if identity not in seen and closer in checkpoints:
            verdict.lost.append(f"the result {key} is not in the index; slice {closer} closed its window")
    if dump.documents_deleted:
        verdict.repeated.append(f"the indices count {dump.documents_deleted} deleted or overwritten documents")


def _check_stream(results: list[Record], documents: list[Row], verdict: JobVerdict) -> None:
    """Against the documents of the index, which were held against the log before. Both were written before any checkpoint."""
    expected = {
        one["_id"]: one["_source"]
        for one in documents
        if one["_source"].get("strandline", {}).get("stage") == "ten_seconds"
    }
    seen: Counter[str] = Counter()
    for record in results:
        identity = record.headers.get("strandline-id", "")
        name = f"result {identity} at {record.partition}/{record.offset} of the stream"
        seen[identity] += 1
        if seen[identity] > 1:
            verdict.repeated.append(f"{name} is there before")
        if identity not in expected:
            verdict.foreign.append(f"{name} is no result of the index: {record.value!r}")
            continue
        held, wanted = json.loads(record.value), dict(expected[identity])
        times = {"start": held.pop("window_start", None), "end": held.pop("window_end", None)}
        # A run may have written the one and the run after it the other.
        for one in (held, wanted):
            one["strandline"] = {name: value for name, value in one.get("strandline", {}).items() if name != "epoch"}
        if times != wanted["window"] or held.keys() != wanted.keys():
            verdict.wrong.append(f"{name} is {record.value!r}")
        elif different := [field for field in wanted if not _same(held[field], wanted[field])]:
            verdict.wrong.append(f"{name} differs from the index in {different}")
    verdict.lost += [f"result {identity} is in the index and not in the stream" for identity in expected.keys() - seen]


class _closers:  # noqa: N801  # reads as the question that it answers
    """Which slice closes a window: the first that closes at or after the window's end."""

    def __init__(self, closes_ms: dict[int, int | None]) -> None:
        self._reached: list[tuple[int, int]] = []
        for number, up_to_ms in closes_ms.items():
            if up_to_ms is not None and (not self._reached or up_to_ms > self._reached[-1][0]):
                self._reached.append((up_to_ms, number))

    def of(self, end_ms: int) -> int | None:
        at = bisect_left(self._reached, end_ms, key=lambda reached: reached[0])
        return self._reached[at][1] if at < len(self._reached) else None


def _differences(
    document: Row, job: str, key: Key, result: Result, closer: int, epochs: tuple[int, int]
) -> Iterator[str]:
    stage, end_ms, _ = key
    end = _iso(end_ms)
    emit_name = f"{job}-{'ten' if stage == 'ten_seconds' else 'minute'}"
    if document["_index"] != f"{emit_name}-{end[:4]}.{end[5:7]}":
        yield f"is in the index {document['_index']}"
    source = dict(document["_source"])
    origin = source.pop("strandline", {})
    if {name: origin.get(name) for name in ("job", "stage", "version")} != {"job": job, "stage": stage, "version": 1}:
        yield f"says that it comes from {origin}"
    if origin.get("emission") != closer or not epochs[0] <= origin.get("epoch", -1) <= epochs[1]:
        yield f"says that it comes from {origin}; slice {closer} closed its window, under epochs {epochs}"
    window = {"start": _iso(end_ms - STAGES[stage]), "end": end}
    expected: Row = {"@timestamp": end, "window": window, **result.by, **result.values}
    for name in expected.keys() | source.keys():
        # A greatest or least value is one of the inputs: no order of adding explains another digit.
        exact = name in ("peak", "low") and source.get(name) != expected.get(name)
        if name not in expected or name not in source or exact or not _same(source[name], expected[name]):
            yield f"{name} is {source.get(name)!r}, expected {expected.get(name)!r}"


def _same(held: Any, expected: Any) -> bool:
    if isinstance(expected, Decimal):
        return isinstance(held, str) and Decimal(held) == expected
    if isinstance(expected, float):
        return isinstance(held, int | float) and math.isclose(held, expected, rel_tol=1e-9)
    return type(held) is type(expected) and held == expected


def _iso(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment_ms % 1000:03d}Z"


def _document_id(job: str, key: Key) -> str:
    """As the docs of a document's id tell it: a hash over the lengths and texts of what names a result."""
    stage, end_ms, by = key
    parts = [("s", job), ("s", stage), ("i", end_ms - STAGES[stage]), ("i", end_ms), ("i", len(by))]
    parts += [("s", value) for value in by]
    text = b"".join(f"{kind}{len(str(part).encode())}:{part}".encode() for kind, part in parts)
    return base64.urlsafe_b64encode(hashlib.sha256(text).digest()[:16]).decode().rstrip("=")


# --- Accounts


def _check_accounts(
    judged: list[Judged],
    results: dict[Key, Result],
    closers: _closers,
    checkpoints: dict[int, Row],
    verdict: JobVerdict,
) -> None:
    records: Counter[int] = Counter()
    rejected: dict[int, Counter[str]] = defaultdict(Counter)
    latest_event: dict[int, int] = {}
    latest_log: dict[int, int] = {}
    for one in judged:
        number = one.slice
        records[number] += 1
        latest_log[number] = max(latest_log.get(number, 0), one.record.log_time_ms)
        if one.reason:
            rejected[number][one.reason] += 1
        if one.reason in (None, "expression") and one.event_ms is not None:
            latest_event[number] = max(latest_event.get(number, 0), one.event_ms)
    closed: dict[int, Counter[str]] = defaultdict(Counter)
    for stage, end_ms, _ in results:
        if (closer := closers.of(end_ms)) is not None:
            closed[closer][stage] += 1
    totals: dict[str, Any] = {"records": 0, "accepted": 0, "rejected": Counter(), "results": Counter()}
    event_ms, log_ms = 0, 0
    for number, row in sorted(checkpoints.items()):
        event_ms, log_ms = max(event_ms, latest_event.get(number, 0)), max(log_ms, latest_log.get(number, 0))
        refused = rejected[number]
        counted = {
            "records": records[number],
            "accepted": records[number] - refused.total(),
            "rejected": dict(refused),
            "results": {stage: closed[number][stage] for stage in STAGES},
            "latest_event_ms": event_ms or None,
            "latest_log_ms": log_ms or None,
        }
        totals["records"] += counted["records"]
        totals["accepted"] += counted["accepted"]
        totals["rejected"] += refused
        totals["results"] += closed[number]
        for name, value in totals.items():
            counted[f"{name}_total"] = {stage: value[stage] for stage in STAGES} if name == "results" else value
        for name, value in counted.items():
            if row[name] != (dict(value) if isinstance(value, Counter) else value):
                verdict.accounts.append(f"slice {number} has {name} {row[name]}, counted {value}")
    dead = sum(one.reason is not None and one.slice in checkpoints for one in judged)
    if totals["records"] != totals["accepted"] + dead:
        verdict.accounts.append(f"{totals['records']} records are not {totals['accepted']} accepted and {dead} refused")
