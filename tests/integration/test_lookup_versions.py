"""A lookup changes while its job runs and its runner is killed.

Each record is enriched by the version of its slice, now and in every replay.

The slice of a record, and its version, are read from the ledger. The contents of a version are known here from what was
applied. Nothing is shared with the platform's own code for lookups.
"""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from typing import Any

import pytest

from strandline.ledger.ledger import Ledger
from tests.support.steady_sender import SteadySender
from tests.support.topic_reader import read_messages

JOB = "enriching"
STREAM = f"stream: {JOB}-in\npartitions: 2\nkey: device\nschema: {{device: string, ts: timestamp, site: string, power: long}}\n"
PIPELINE = f"""
pipeline: {JOB}
input: {{stream: {JOB}-in}}
event_time: {{field: ts, delay: 5s, max_ahead: null, idle_timeout: null}}
steps:
  - enrich: {{lookup: {JOB}-sites, key: site, add: [factor]}}
  - window: {{name: short, tumbling: 10s, by: [device], aggregate: {{n: count(*), total: sum(power * factor)}}}}
    emit: [{{elasticsearch: {JOB}-short}}]
"""
FACTORS: dict[int, dict[str, int]] = {
    1: {"A": 1, "B": 10},
    2: {"A": 3, "B": 10, "C": 7},
    3: {"B": 11, "C": 7, "D": 5},
}
"""Version of the lookup -> its rows."""
BASE_MS = 1_700_000_000_000 // 60_000 * 60_000


def lookup(version: int) -> str:
    rows = [{"site": site, "factor": factor} for site, factor in FACTORS[version].items()]
    document = {"lookup": f"{JOB}-sites", "schema": {"site": "string", "factor": "long"}, "key": "site", "rows": rows}
    return json.dumps(document)


def record(number: int) -> bytes:
    made = {"device": f"d{number % 3}", "ts": BASE_MS + number * 100, "site": "ABCD"[number % 4], "power": number % 50}
    return json.dumps(made).encode()


@pytest.mark.guarantee("G440")
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_lookup_changes_and_its_job_is_killed_and_no_record_is_enriched_by_another_version(platform):
    platform.apply(STREAM + "---\n" + lookup(1) + "\n---\n" + PIPELINE)
    ledger = Ledger.open(platform.stack.addresses.ledger_url)
    sender = SteadySender(platform, f"{JOB}-in", record)
    sender.start()
    ends_when_applied = {}

    def wait_until_at_work(version: int) -> None:
        def is_at_work(state: dict[str, Any]) -> bool:
            last = ledger.last_slice(JOB)
            return last is not None and last.lookup_versions == {f"{JOB}-sites": version}

        platform.wait_for(JOB, is_at_work, f"at work by version {version}")

    try:
        wait_until_at_work(1)
        for version in (2, 3):
            if version == 3:
                os.kill(ledger.runs(JOB)[-1].pid, signal.SIGKILL)
            (applied,) = platform.control.apply(lookup(version).encode(), "test.yaml")
            assert applied["notes"] == [f"job {JOB} uses this version from its next slice"]
            partitions = platform.control.stream(f"{JOB}-in")["partitions"]
            ends_when_applied[version] = {one["partition"]: one["offset_next"] for one in partitions}
            wait_until_at_work(version)
    finally:
        sender.end()
    platform.stop(JOB, drain=True)
    assert len(ledger.runs(JOB)) == 2, "a change takes no run of its own, and the kill took one"
    assert wrong(platform, ledger, ends_when_applied) == []
    report = platform.audit(JOB)
    assert (report["outcome"], report["differences"]) == ("clean", 0), report
    ledger.close()


def wrong(platform: Any, ledger: Ledger, ends_when_applied: dict[int, dict[int, int]]) -> list[str]:
    """Return each deviation from the versions of the slices, as a sentence."""
    stream = f"{JOB}-in"
    slices = ledger.slices(JOB, 1, ledger.slice_count(JOB))
    version_of = {one.number: one.lookup_versions[f"{JOB}-sites"] for one in slices}
    versions = list(version_of.values())
    findings = [] if versions == sorted(versions) else ["a slice uses an older version than the one before it"]
    findings += [
        f"slice {one.number} uses version {version_of[one.number]} and holds records from after version {version}"
        for version, ends in ends_when_applied.items()
        for one in slices
        if version_of[one.number] < version and any(one.offsets[stream][p] > end for p, end in ends.items())
    ]
    missed, windows = set(), defaultdict(list)
    for message in read_messages(platform.stack.addresses.kafka_bootstrap, stream, isolation="read_committed"):
        partition, offset = message.partition(), message.offset()
        (held_by,) = [
            one.number
            for one in slices
            if one.offsets_first[stream].get(partition, 0) <= offset < one.offsets[stream][partition]
        ]
        value = json.loads(message.value())
        factor = FACTORS[version_of[held_by]].get(value["site"])
        if factor is None:
            missed.add((partition, offset))
        else:
            windows[value["ts"] // 10_000 * 10_000, value["device"]].append(value["power"] * factor)
    letters = {
        (int(headers["partition"]), int(headers["offset"]))
        for _, headers in platform.topic(f"{JOB}.dead-letter")
        if headers["reason"] == b"lookup"
    }
    findings += [f"record {place} has one dead letter too many" for place in sorted(letters - missed)]
    findings += [f"record {place} should be a dead letter" for place in sorted(missed - letters)]
    expected = {key: (len(totals), sum(totals)) for key, totals in windows.items()}
    found = {
        (start_ms(document), document["device"]): (document["n"], document["total"])
        for document in platform.documents(f"{JOB}-short").values()
    }
    return findings + [
        f"window {key}: {found.get(key)} instead of {expected.get(key)}"
        for key in sorted(expected.keys() | found.keys())
        if found.get(key) != expected.get(key)
    ]


def start_ms(document: dict[str, Any]) -> int:
    from datetime import datetime

    return round(datetime.fromisoformat(document["window"]["start"]).timestamp() * 1_000)
