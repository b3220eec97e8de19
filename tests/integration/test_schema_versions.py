"""A stream's document changes again and again while its job runs.

Each record is decoded by the version of its slice, now and in every replay.

Which records a version accepts is known here from the records that were sent. The slice of a record, and its version,
are read from the ledger. Nothing is shared with the platform's decoder.
"""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from typing import Any

import pytest

from strandline.ledger.ledger import Ledger
from strandline.ledger.states import SliceRow
from tests.support.steady_sender import SteadySender
from tests.support.topic_reader import read_messages

FIELDS: dict[str, Any] = {
    "device": "string",
    "ts": {"type": "timestamp", "unit": "ms"},
    "power": "integer",
    "level": "integer",
    "probe": {"type": "integer", "max": 6},
}
CHANGES: list[dict[str, Any]] = [
    {"probe": {"type": "integer", "max": 8}},  # another bound
    {"wind": "double?"},  # a field more
    {"level": "long"},  # a wider type, which the pipeline computes with
    {"probe": {"type": "integer", "max": 5, "text": True}},
    {"ts": {"type": "timestamp", "unit": "ms", "from": "$.ts"}},
    {"power": "long"},
    {"probe": {"type": "integer", "required": False, "text": True}},
    {"level": "decimal(21,2)"},
    {"note": "string?"},
    {"probe": {"type": "integer", "required": False, "text": True, "min": 2, "max": 7}},
]
TAKES_A_RUN = {2, 5, 7}
"""The changes after which the pipeline computes with other types."""
STREAM = "stream: {job}-in\npartitions: 2\nkey: device\nschema: {schema}\n"
PIPELINE = """
pipeline: {job}
input: {{stream: {job}-in}}
event_time: {{field: ts, delay: 5s, max_ahead: null, idle_timeout: null}}
steps:
  - where: level < 1000
  - window: {{name: short, tumbling: 10s, by: [device], aggregate: {{n: count(*), total: sum(power)}}}}
    emit: [{{elasticsearch: {job}-short}}]
"""
BASE_MS = 1_700_000_000_000 // 60_000 * 60_000


def schema(version: int) -> dict[str, Any]:
    """Return the schema of this version, counted from 1."""
    fields = dict(FIELDS)
    for change in CHANGES[: version - 1]:
        fields |= change
    return fields


def record(number: int) -> dict[str, Any]:
    """Some have a level that only wider types hold, some a probe that only some bounds allow, or that is text, some none."""
    level: Any = 3_000_000_000 if number % 11 == 0 else 12.5 if number % 13 == 0 else number % 50
    probe: Any = str(number % 10) if number % 17 == 0 else number % 10
    made = {"device": f"d{number % 3}", "ts": BASE_MS + number * 100, "power": number * 7 % 100, "level": level}
    return made if number % 19 == 0 else made | {"probe": probe}


def is_taken(value: dict[str, Any], version: int) -> bool:
    """Return whether this version of the schema accepts the record."""
    fields = {name: {"type": one} if isinstance(one, str) else one for name, one in schema(version).items()}
    level, of_level, probe = value["level"], fields["level"]["type"], fields["probe"]
    if of_level == "integer" and level >= 2**31:
        return False
    if of_level in ("integer", "long") and isinstance(level, float):
        return False
    if "probe" not in value:
        return probe["type"].endswith("?") or probe.get("required") is False
    if isinstance(value["probe"], str) and not probe.get("text"):
        return False
    return probe.get("min", -1) <= int(value["probe"]) <= probe.get("max", 99)


class Story:
    """One job, and what was seen of its stream while the document changed."""

    def __init__(self, platform, job: str):
        self.platform, self.job, self.stream = platform, job, f"{job}-in"
        self.ledger = Ledger.open(platform.stack.addresses.ledger_url)
        self.ends_when_applied: dict[int, dict[int, int]] = {}
        """Version -> where the log ended when it had been applied."""

    def document(self, version: int) -> str:
        return STREAM.format(job=self.job, schema=json.dumps(schema(version)))

    def apply(self, version: int) -> list[str]:
        """Apply this version; what the answer says of the job."""
        (applied,) = self.platform.control.apply(self.document(version).encode(), "test.yaml")
        assert (applied["outcome"], applied["version"]) == ("changed", version)
        partitions = self.platform.control.stream(self.stream)["partitions"]
        self.ends_when_applied[version] = {one["partition"]: one["offset_next"] for one in partitions}
        return applied["notes"]

    def kill(self) -> None:
        run = self.ledger.runs(self.job)[-1]
        if run.ended_ms is None:
            os.kill(run.pid, signal.SIGKILL)

    def wait_until_at_work(self, version: int) -> None:
        """Wait until slices that use this version have closed a window."""

        def is_at_work(state: dict[str, Any]) -> bool:
            found = [one for one in self.slices() if one.stream_versions == {self.stream: version}]
            return bool(found) and state["slice"] is not None and state["slice"] > found[0].number + 2

        self.platform.wait_for(self.job, is_at_work, f"at work by version {version}")

    def slices(self) -> list[SliceRow]:
        return self.ledger.slices(self.job, 1, self.ledger.slice_count(self.job))

    def close(self) -> None:
        self.ledger.close()


@pytest.mark.guarantee("G261")
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("changes", [3, pytest.param(10, marks=pytest.mark.long)])
def test_the_document_changes_under_load_and_no_record_is_decoded_by_another_version_than_its_slices(platform, changes):
    """The long form kills the runner before and after each change."""
    story = Story(platform, f"evolving-{changes}")
    is_long = changes > 3
    platform.apply(story.document(1) + "---" + PIPELINE.format(job=story.job))
    sender = SteadySender(platform, story.stream, lambda number: json.dumps(record(number)).encode())
    sender.start()
    try:
        story.wait_until_at_work(1)
        for version in range(2, changes + 2):
            if is_long and version % 2:
                story.kill()
            (note,) = story.apply(version)
            assert ("recomputes its open windows" in note) == (version - 2 in TAKES_A_RUN), note
            if is_long and not version % 2:
                story.kill()
            story.wait_until_at_work(version)
            assert sender.error is None
    finally:
        sender.end()
    platform.stop(story.job, drain=True)
    if not is_long:
        assert len(story.ledger.runs(story.job)) == 2, "the other changes count at the next slice"
    assert wrong(story) == []
    report = platform.audit(story.job)
    assert (report["outcome"], report["differences"]) == ("clean", 0), report
    story.close()


def wrong(story: Story) -> list[str]:
    """Return each deviation from the versions of the slices, as a sentence."""
    slices = story.slices()
    versions = [one.stream_versions[story.stream] for one in slices]
    findings = [] if versions == sorted(versions) else ["a slice uses an older version than the one before it"]
    for version, ends in story.ends_when_applied.items():
        findings += [
            f"slice {one.number} uses version {one.stream_versions} and holds records from after version {version}"
            for one in slices
            if one.stream_versions[story.stream] < version
            and any(one.offsets[story.stream][partition] > end for partition, end in ends.items())
        ]
    kafka = story.platform.stack.addresses.kafka_bootstrap
    refused, windows = set(), defaultdict(list)
    for message in read_messages(kafka, story.stream, isolation="read_committed"):
        place = message.partition(), message.offset()
        (held_by,) = [
            one
            for one in slices
            if one.offsets_first[story.stream].get(place[0], 0) <= place[1] < one.offsets[story.stream][place[0]]
        ]
        value = json.loads(message.value())
        if not is_taken(value, held_by.stream_versions[story.stream]):
            refused.add(place)
        elif value["level"] < 1_000:
            windows[value["ts"] // 10_000, value["device"]].append(value["power"])
    letters = {
        (int(headers["partition"]), int(headers["offset"]))
        for _, headers in story.platform.topic(f"{story.job}.dead-letter")
        if headers["reason"] == b"schema"
    }
    findings += [f"record {place} is a dead letter and should not be" for place in sorted(letters - refused)]
    findings += [f"record {place} should be a dead letter" for place in sorted(refused - letters)]
    expected = {key: (len(powers), sum(powers)) for key, powers in windows.items()}
    found = {
        (int(document["@timestamp"].timestamp() * 1_000) // 10_000 - 1, document["device"]): (
            document["n"],
            document["total"],
        )
        for document in map(with_time, story.platform.documents(f"{story.job}-short").values())
    }
    return findings + [
        f"window {key}: {found.get(key)} instead of {expected.get(key)}"
        for key in sorted(expected.keys() | found.keys())
        if found.get(key) != expected.get(key)
    ]


def with_time(document: dict[str, Any]) -> dict[str, Any]:
    from datetime import datetime

    return document | {"@timestamp": datetime.fromisoformat(document["@timestamp"])}
