"""A job is reset, with kills during the reset, deleted, and its name is reused, against real servers.

The aliases show results of the current life alone, each window once, and an audit of everything is clean.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from strandline.core.errors import NotFound
from strandline.core.failpoints import LIFECYCLE_FAILPOINTS
from strandline.log.admin import KafkaAdmin
from tests.support.audit_lab import AuditLab
from tests.support.topic_reader import read_messages
from tests.support.waiting import stretched

pytestmark = pytest.mark.timeout(600)
NAME = "lives"
STREAM = f"{NAME}-in"
BASE_MS = 1_793_491_200_000
STREAM_TEXT = f"""
stream: {STREAM}
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, power: long}}
key: device
"""
PIPELINE = """
pipeline: lives
input: {{stream: lives-in}}
event_time: {{field: ts, delay: 10s, max_ahead: null, idle_timeout: null}}
steps:
  - window: {{name: tens, tumbling: 10s, by: [device], aggregate: {{total: sum(power * {times})}}}}
    emit: [{{elasticsearch: lives-tens}}]
"""
BROKEN_EVERY = 50


def lines(first: int, last: int) -> list[bytes]:
    """Three devices, a record each 100 ms; one in fifty is broken."""
    return [
        b"broken"
        if number % BROKEN_EVERY == 7
        else json.dumps({"device": f"d{number % 3}", "ts": BASE_MS + number * 100, "power": number % 11}).encode()
        for number in range(first, last)
    ]


def expected(first: int, last: int, times: int) -> dict[tuple[int, str], int]:
    """(window's end, device) -> total of the records from `first` to before `last`."""
    totals: Counter[tuple[int, str]] = Counter()
    for number in range(first, last):
        if number % BROKEN_EVERY != 7:
            end_ms = (BASE_MS + number * 100) // 10_000 * 10_000 + 10_000
            totals[end_ms, f"d{number % 3}"] += number % 11 * times
    return dict(totals)


def shown(lab: AuditLab) -> tuple[dict[tuple[int, str], int], set[str]]:
    """Return what the alias shows, and from which indices. No window is there twice."""
    lab.index.post("/lives-tens/_refresh").raise_for_status()
    hits = lab.index.post(
        "/lives-tens/_search", json={"size": 10_000, "fields": [{"field": "@timestamp", "format": "epoch_millis"}]}
    )
    found: dict[tuple[int, str], int] = {}
    indices = set()
    for hit in hits.json()["hits"]["hits"]:
        key = int(hit["fields"]["@timestamp"][0]), hit["_source"]["device"]
        assert key not in found, f"{key} is shown twice"
        found[key] = hit["_source"]["total"]
        indices.add(hit["_index"])
    return found, indices


def letters(lab: AuditLab) -> Counter[str]:
    """Identity of a dead letter -> how often it is in the stream."""
    messages = read_messages(lab.settings.kafka_bootstrap, f"{NAME}.dead-letter", 1, isolation="read_committed")
    return Counter((message.key() or b"").decode() for message in messages)


RESET = """
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.log.admin import KafkaAdmin
from strandline.services.jobs.job_lifecycle import JobLifecycle
settings = Settings()
admin = KafkaAdmin(settings.kafka_bootstrap, timeout_s=30, changes_topics=True)
JobLifecycle(Ledger.open(settings.ledger_url), admin, settings.elasticsearch_url).reset("lives", "earliest")
"""


def reset_killed_at(lab: AuditLab, failpoint: str) -> None:
    settings = lab.settings.model_dump(mode="json", exclude_none=True)
    environment = {f"STRANDLINE_{name.upper()}": str(value) for name, value in settings.items()}
    done = subprocess.run(
        [sys.executable, "-c", RESET],
        env={**os.environ, **environment, "STRANDLINE_FAILPOINTS": f"{failpoint}=kill"},
        capture_output=True,
        text=True,
        timeout=stretched(100),
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def require_clean(lab: AuditLab) -> None:
    report = lab.audit(NAME)
    assert report["outcome"] == "clean", report


@pytest.mark.guarantee("G221")
@pytest.mark.long
def test_each_life_of_a_job_is_shown_alone_and_audited_clean(audit_lab: AuditLab) -> None:
    lab = audit_lab
    lab.apply(STREAM_TEXT)
    lab.apply(PIPELINE.format(times=1))
    lab.send(STREAM, lines(0, 1_500))
    lab.drain(NAME)
    assert shown(lab) == (expected(0, 1_500, 1), {"lives-tens-2026.11"})
    first_letters = letters(lab)
    assert set(first_letters.values()) == {1} and len(first_letters) == 30

    # Reset, with a kill at each step. What was killed before its end has changed nothing that is shown.
    for failpoint in LIFECYCLE_FAILPOINTS[:2]:
        reset_killed_at(lab, failpoint)
        assert shown(lab) == (expected(0, 1_500, 1), {"lives-tens-2026.11"})
    reset_killed_at(lab, "reset.begun")
    lab.apply(PIPELINE.format(times=2))
    lab.send(STREAM, lines(1_500, 2_000))
    lab.drain(NAME)
    assert shown(lab) == (expected(0, 2_000, 2), {"lives-tens.g2-2026.11"})
    assert letters(lab) == Counter({identity: 2 for identity in first_letters}) + Counter(
        {identity: 1 for identity in letters(lab) if identity not in first_letters}
    )
    require_clean(lab)

    # A backfill of this life replaces results of this life.
    row = lab.backfill(lab.request_backfill(NAME, BASE_MS + 100_000))
    assert (row.state, row.generation) == ("complete", 3)
    assert shown(lab) == (expected(0, 2_000, 2), {"lives-tens.g2-2026.11", "lives-tens.g3-2026.11"})
    require_clean(lab)

    # To the latest: nothing from before is shown, or counted, any more.
    assert lab.lifecycle.reset(NAME, "latest").generation == 4
    lab.index.post("/lives-tens/_refresh")
    assert lab.index.get("/_alias/lives-tens").status_code == 404
    lab.send(STREAM, lines(2_000, 2_600))
    lab.drain(NAME)
    assert shown(lab) == (expected(2_000, 2_600, 2), {"lives-tens.g4-2026.11"})
    require_clean(lab)

    # Deleted, with its results and dead letters; then the name is used for another job over the same stream.
    with pytest.raises(NotFound):
        lab.lifecycle.delete("nobody", results=True, dead_letters=True)
    deleted = lab.lifecycle.delete(NAME, results=True, dead_letters=True)
    assert deleted.indices == sorted(
        ["lives-tens-2026.11", *(f"lives-tens.g{generation}-2026.11" for generation in (2, 3, 4))]
    )
    assert lab.index.get("/lives-tens*").json() == {}
    admin = KafkaAdmin(lab.settings.kafka_bootstrap, timeout_s=30)
    with pytest.raises(NotFound):
        admin.describe(f"{NAME}.dead-letter")
    lab.apply(
        PIPELINE.format(times=3).replace("by: [device]", "by: [device, power]").replace("total:", "n: count(*), total:")
    )
    lab.apply(PIPELINE.format(times=3))
    lab.drain(NAME)
    assert shown(lab) == (expected(0, 2_600, 3), {"lives-tens.g5-2026.11"})
    assert set(letters(lab).values()) == {1} and len(letters(lab)) == 52
    require_clean(lab)
