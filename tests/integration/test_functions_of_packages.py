"""A job whose records pass through a Python function of an installed package.

Checks its results, a dead letter for the record for which the function fails, a clean audit, and the message when the
function is no longer allowed. Real Kafka, Elasticsearch, Spark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.ledger.states import Desired, JobState
from strandline.processing.pipelines.functions.installed import package_of
from strandline.processing.run.exit_codes import EXIT_FAILED
from strandline.processing.slices.rewind import RUN_BEGINS
from tests.support.audit_lab import AuditLab
from tests.support.installed_package import install
from tests.support.topic_reader import read_messages
from tests.support.waiting import stretched

NAME = "spelled"
BASE_MS = 1_790_000_000_000 // 60_000 * 60_000
DOCUMENTS = f"""
stream: {NAME}-words
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, text: string}}
key: device
---
pipeline: {NAME}
input: {{stream: {NAME}-words}}
event_time: {{field: ts, delay: 0s, max_ahead: null}}
steps:
  - derive: {{word: "lower(split_part(text, ':', 2))", second: second(ts)}}
  - map: {{function: "acme_quality:spelled", reads: [word], columns: {{n: long}}, deterministic: true}}
  - window: {{name: minutes, tumbling: 1m, by: [device], aggregate: {{count: count(*), n: sum(n), last: max(second)}}}}
    emit: [{{elasticsearch: {NAME}-minutes}}]
"""
WORDS = ["zero", "one", "two", "three"]


@pytest.mark.guarantee("G415")
@pytest.mark.guarantee("G416")
@pytest.mark.long
def test_a_function_of_a_package_runs_in_the_workers_and_a_bad_record_is_a_dead_letter(
    audit_lab: AuditLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = audit_lab
    monkeypatch.syspath_prepend(install(tmp_path))
    monkeypatch.setenv("STRANDLINE_ALLOW_FUNCTIONS", "acme_quality")
    package_of.cache_clear()
    lab.apply(DOCUMENTS)
    words = [WORDS[number % 4] if number != 7 else "seven" for number in range(60)]
    readings = [
        {"device": "d", "ts": BASE_MS + number * 1_000, "text": f"said:{word.upper()}"}
        for number, word in enumerate(words)
    ]
    lab.send(f"{NAME}-words", [json.dumps(one).encode() for one in readings])

    assert run(lab, tmp_path, "acme_quality") == 0
    (document,) = lab.documents(f"{NAME}-minutes").values()
    total = sum(WORDS.index(word) for word in words if word in WORDS)
    assert {name: document[name] for name in ("count", "n", "last")} == {"count": 59, "n": total, "last": 59}
    (letter,) = read_messages(lab.settings.kafka_bootstrap, f"{NAME}.dead-letter", 1, isolation="read_committed")
    headers = {name: bytes(value or b"").decode() for name, value in letter.headers() or ()}
    assert (headers["reason"], headers["step"]) == ("expression", "steps[1].map")
    assert headers["message"].endswith("acme_quality:spelled failed with ValueError: 'seven' is not in list")
    assert lab.audit(NAME)["outcome"] == "clean"
    (begun,) = [event for event in lab.ledger.events(NAME) if event.kind == RUN_BEGINS]
    assert begun.facts["functions"] == {"acme_quality:spelled": "acme-quality 1.2.0"}

    assert run(lab, tmp_path, "") == EXIT_FAILED
    job = lab.ledger.job(NAME)
    assert job.state is JobState.FAILED
    assert "acme_quality:spelled is not allowed here" in job.message
    package_of.cache_clear()


def run(lab: AuditLab, package: Path, allowed: str) -> int:
    """Drain the job in a process of its own; its exit code."""
    lab.ledger.set_desired(NAME, Desired.DRAINED)
    settings = lab.settings.model_dump(mode="json", exclude_none=True) | {"allow_functions": allowed}
    environment = {f"STRANDLINE_{name.upper()}": str(value) for name, value in settings.items()}
    return subprocess.run(
        [sys.executable, "-m", "strandline.processing.run.process", "--job", NAME],
        env={**os.environ, **environment, "PYTHONPATH": str(package)},
        timeout=stretched(120),
        check=False,
    ).returncode
