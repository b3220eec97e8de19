"""A running job gets new versions while records pour in: each window is emitted by one version, as that version says.

The recomputation below knows the records that were sent and the versions, and shares no code with the platform.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from tests.support.steady_sender import BATCH_RECORDS, SteadySender

STREAM = """
stream: {job}-in
partitions: 2
schema:
  device: string
  ts: {{type: timestamp, unit: ms}}
  power: long
key: device
"""
PIPELINE = """
pipeline: {job}
input: {{stream: {job}-in}}
event_time: {{field: ts, delay: 5s, max_ahead: null, idle_timeout: null}}
steps:
  - where: power < {below}
  - window: {{name: short, tumbling: {short}s, by: [device], aggregate: {{{aggregates}}}}}
    emit: [{{elasticsearch: {job}-short}}]
  - window: {{name: minute, tumbling: 1m, aggregate: {{n: sum(n), peak: max(peak)}}}}
    emit: [{{elasticsearch: {job}-minute}}]
"""
COUNT, TOTAL = "n: count(*), peak: max(power)", "n: count(*), peak: max(power), total: sum(power)"
VERSIONS = [(90, 10, COUNT), (90, 10, TOTAL), (50, 10, TOTAL), (50, 15, TOTAL)]
"""Aggregate added, filter changed, size changed, and then all rolled back: (power below, seconds, aggregates)."""
UPGRADES = int(os.environ.get("STRANDLINE_TEST_UPGRADES", "4"))
BASE_MS = 1_700_000_000_000 // 60_000 * 60_000
STEP_MS = 100
assert STEP_MS * BATCH_RECORDS < 5_000, (
    "less than the delay, so that a slice that is cut through a request makes nothing late"
)


def text(job: str, version: int) -> str:
    below, short, aggregates = VERSIONS[version % len(VERSIONS)]
    return PIPELINE.format(job=job, below=below, short=short, aggregates=aggregates)


def record(number: int) -> tuple[int, str, int]:
    return BASE_MS + number * STEP_MS, f"d{number % 3}", number * 7 % 100


def line(number: int) -> bytes:
    ts, device, power = record(number)
    return json.dumps({"device": device, "ts": ts, "power": power}).encode()


def expected(sent: int, version: int) -> tuple[dict, dict]:
    """By (window end, device) and by window end: what this version makes of everything that was sent."""
    below, short_s, aggregates = VERSIONS[version % len(VERSIONS)]
    groups = defaultdict(list)
    for ts, device, power in map(record, range(sent)):
        if power < below:
            groups[(ts // (short_s * 1_000) + 1) * short_s * 1_000, device].append(power)
    short = {key: {"n": len(powers), "peak": max(powers)} for key, powers in groups.items()}
    if "total" in aggregates:
        for key, powers in groups.items():
            short[key]["total"] = sum(powers)
    parts = defaultdict(list)
    for (end_ms, _), result in short.items():
        parts[((end_ms - 1) // 60_000 + 1) * 60_000].append(result)
    return short, {
        end: {"n": sum(p["n"] for p in all_), "peak": max(p["peak"] for p in all_)} for end, all_ in parts.items()
    }


def millis(timestamp: str) -> int:
    return int(datetime.fromisoformat(timestamp).astimezone(UTC).timestamp() * 1_000)


def check_stage(documents: dict, is_right, keys_of) -> list[str]:
    """Return what is wrong with a stage's documents, as sentences."""
    findings: list[str] = []
    versions: dict[int, int] = {}
    starts: dict[int, int] = {}
    keys = defaultdict(set)
    for document in documents.values():
        start, end = (millis(document["window"][side]) for side in ("start", "end"))
        version = document["strandline"]["version"]
        if versions.setdefault(end, version) != version:
            findings.append(f"window {end} is by versions {versions[end]} and {version}")
        starts[end] = start
        keys[end].add(document.get("device"))
        is_right(document, end, version, findings)
    ends = sorted(starts)
    for before, end in pairwise(ends):
        if versions[before] > versions[end]:
            findings.append(f"the version falls at {end}")
        if starts[end] > before:
            findings.append(f"a gap before {end}")
    findings += [f"missing {key} at {end}" for end in ends for key in keys_of(end, versions[end]) - keys[end]]
    return findings


@pytest.mark.guarantee("G18")
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_versions_take_over_under_load_and_no_window_is_emitted_by_two(platform):
    job = "upgraded"
    platform.apply(STREAM.format(job=job) + "---" + text(job, 0))
    sender = SteadySender(platform, f"{job}-in", line)
    sender.start()
    audited_ms = BASE_MS
    try:
        for version in range(UPGRADES + 1):
            if version:
                (plan,) = platform.control.plan(text(job, version).encode(), "test.yaml")["jobs"]
                assert plan["outcome"] == "changed"
                assert {change["effect"] for change in plan["changes"]} <= {"rewind", "safe"}
                platform.apply(text(job, version))
            state = platform.wait_for(
                job, lambda s, v=version: runs(platform, s, job, v + 1), f"version {version + 1} at work"
            )
            emitted = state["last_emission"]["minute"]
            platform.wait_for(
                job, lambda s, e=emitted: s["last_emission"]["minute"] > e + 60_000, "two minutes further"
            )
            assert sender.error is None
            if len(VERSIONS) < UPGRADES:  # the long form: what has come since the upgrade before is clean each time
                report = platform.audit(job, after_ms=audited_ms)
                assert (report["outcome"], report["differences"]) == ("clean", 0), report
                print(f"version {version + 1}: {report['computed']['results']} results, clean")
                audited_ms = emitted
    finally:
        sender.end()
    state = platform.stop(job, drain=True)
    assert state["counts"]["records"] == state["counts"]["accepted"] == sender.sent
    results = [expected(sender.sent, version) for version in range(UPGRADES + 1)]

    def short_is_right(document, end, version, findings):
        wanted = results[version - 1][0].get((end, document["device"]))
        found = {name: document[name] for name in ("n", "peak", "total") if name in document}
        if found != wanted:
            findings.append(f"{document['device']} {end} of version {version} is {found}, expected {wanted}")

    def minute_is_right(document, end, version, findings):
        found, wanted = {name: document[name] for name in ("n", "peak")}, results[version - 1][1].get(end)
        if found != wanted:
            findings.append(f"minute {end} of version {version} is {found}, expected {wanted}")

    short, minute = platform.documents(f"{job}-short"), platform.documents(f"{job}-minute")
    devices = [defaultdict(set) for _ in results]
    for found, (wanted, _) in zip(devices, results, strict=True):
        for end, device in wanted:
            found[end].add(device)
    assert check_stage(short, short_is_right, lambda end, v: devices[v - 1][end]) == []
    assert check_stage(minute, minute_is_right, lambda end, v: {None} if end in results[v - 1][1] else set()) == []
    last_ms = record(sender.sent - 1)[0]
    assert max(millis(document["window"]["end"]) for document in minute.values()) > last_ms
    assert {document["strandline"]["version"] for document in minute.values()} == set(range(1, UPGRADES + 2))
    report = platform.audit(job)
    assert (report["outcome"], report["differences"]) == ("clean", 0), report


def runs(platform, state, job: str, version: int) -> bool:
    """Whether the version is at work: it has emitted something."""
    if state["version"] != version or state["slice"] is None or not state["last_emission"].get("minute"):
        return False
    (last,) = platform.control.get(f"/v1/jobs/{job}/slices", after=state["slice"] - 1, limit=1)["slices"]
    return last["version"] == version
