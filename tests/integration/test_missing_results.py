"""An index and a table that are older than the ledger: a start notices it, and one command restores what is missing."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from strandline.core.settings import Settings
from strandline.ledger.states import Desired, JobState
from strandline.processing.run.runner import Runner
from strandline.results.elasticsearch_client import request
from tests.support.audit_lab import AuditLab
from tests.support.topic_reader import read_messages
from tests.support.waiting import stretched, wait_until

pytestmark = [pytest.mark.timeout(600), pytest.mark.in_order, pytest.mark.long]
NAME = "older"
STREAM = f"{NAME}-in"
BASE_MS = 1_793_491_200_000 - 100_000
"""Before 2026-11-01 UTC, so the results are in the indices of two months."""
TEXT = f"""
stream: {STREAM}
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, power: long}}
key: device
---
pipeline: {NAME}
input: {{stream: {STREAM}}}
event_time: {{field: ts, delay: 2s, max_ahead: null, idle_timeout: null}}
steps:
  - where: power < 90
  - emit: [{{elasticsearch: {NAME}-raw}}]
    name: raw
  - window: {{name: tens, tumbling: 10s, by: [device], aggregate: {{n: count(*), total: sum(power)}}}}
    emit: [{{elasticsearch: {NAME}-tens}}, {{stream: {NAME}-tens-out}}, {{sql: {{table: older_tens}}}}]
  - window: {{name: minute, tumbling: 1m, aggregate: {{n: sum(n), peak: max(total)}}}}
    emit: [{{elasticsearch: {NAME}-minute}}]
"""
ALIASES = [f"{NAME}-{stage}" for stage in ("raw", "tens", "minute")]


def lines(first: int, last: int) -> list[bytes]:
    rows = ({"device": f"d{n % 7}", "ts": BASE_MS + 60 * n, "power": n * 37 % 100} for n in range(first, last))
    return [json.dumps(row).encode() for row in rows]


def stored(lab: AuditLab) -> dict[str, dict[str, Any]]:
    """Alias -> id -> document, without the run that wrote it."""
    found: dict[str, dict[str, Any]] = {}
    for alias in ALIASES:
        request(lab.settings.elasticsearch_url, "POST", f"/{alias}-*/_refresh", timeout_s=30)
        found[alias] = lab.documents(alias)
        for document in found[alias].values():
            for name in ("epoch", "emission", "slice_digest"):
                document["strandline"].pop(name)
    return found


def rows(lab: AuditLab) -> list[tuple[Any, ...]]:
    from strandline.results.sinks.sql import writer as sql_writer

    with sql_writer.reading(sql_writer.sql_url(lab.settings), "older_tens") as connection:
        found = connection.exec_driver_sql("SELECT strandline_id, n, total FROM older_tens ORDER BY strandline_id")
        return [tuple(row) for row in found]


def emitted(lab: AuditLab) -> int:
    return len(list(read_messages(lab.settings.kafka_bootstrap, f"{NAME}-tens-out")))


def lose_after(lab: AuditLab, emission: int) -> None:
    """Bring index and table back to their state after this slice, as from a snapshot of that time."""
    url, later = lab.settings.elasticsearch_url, {"range": {"strandline.emission": {"gt": emission}}}
    for alias in ALIASES:
        body = {"size": 10_000, "_source": False, "query": later}
        hits = request(url, "POST", f"/{alias}-*/_search", timeout_s=60, body=body)["hits"]["hits"]
        for hit in hits:
            request(url, "DELETE", f"/{hit['_index']}/_doc/{hit['_id']}", timeout_s=60)
        request(url, "POST", f"/{alias}-*/_refresh", timeout_s=30)
    from strandline.results.sinks.sql import writer as sql_writer

    with sql_writer.engine_of(sql_writer.sql_url(lab.settings)).begin() as connection:
        connection.exec_driver_sql(f"DELETE FROM older_tens WHERE strandline_emission > {emission}")


def failed_start(lab: AuditLab) -> str:
    lab.ledger.set_desired(NAME, Desired.RUNNING)
    assert Runner(lab.settings, NAME, lab.spark).run() == 1
    job = lab.ledger.job(NAME)
    assert job.state is JobState.FAILED
    return job.message


def restore(lab: AuditLab) -> None:
    """Do what `strandline job backfill NAME --missing` does. Then the job is stopped."""
    lab.ledger.order_restore(NAME)
    with lab.running(NAME, STREAM):
        wait_until(lambda: lab.ledger.job(NAME).restores, lambda restores: not restores, "restored: all results", 120)


@pytest.fixture(scope="module")
def lab(audit_lab: AuditLab, tmp_path_factory: pytest.TempPathFactory) -> AuditLab:
    with pytest.MonkeyPatch.context() as patch:
        url = f"sqlite:///{tmp_path_factory.mktemp('sink') / 'results.sqlite'}"
        patch.setenv("STRANDLINE_SQL_SINK_URL", url)
        audit_lab.settings = Settings(**{**audit_lab.settings.model_dump(), "sql_sink_url": url})
        audit_lab.apply(TEXT)
        for first in range(0, 6_000, 1_500):
            audit_lab.send(STREAM, lines(first, first + 1_500))
            with audit_lab.running(NAME, STREAM):
                pass
        yield audit_lab


@pytest.mark.guarantee("G764")
@pytest.mark.guarantee("G765")
def test_one_command_restores_what_an_older_copy_of_index_and_table_lacks(lab: AuditLab) -> None:
    before, before_rows, before_emitted = stored(lab), rows(lab), emitted(lab)
    assert min(map(len, before.values())) >= 3 and before_rows
    checkpoints = lab.ledger.emitting_checkpoints(NAME)
    middle = checkpoints[len(checkpoints) // 2].slice
    lose_after(lab, middle)
    assert stored(lab) != before
    message = failed_start(lab)
    assert f"run strandline job backfill {NAME} --missing" in message and "are missing in " in message
    restore(lab)
    assert not lab.ledger.job(NAME).restores
    assert stored(lab) == before and rows(lab) == before_rows
    assert emitted(lab) == before_emitted, "nothing is written to the stream again"
    facts = [one.facts for one in lab.ledger.events_of_kind(NAME, "results_restored")]
    assert facts == [{"slice_first": middle + 1, "slice_last": checkpoints[0].slice}]


def test_the_job_goes_on_after_the_restore_and_audits_clean(lab: AuditLab) -> None:
    lab.send(STREAM, lines(6_000, 9_000))
    started = time.monotonic()
    with lab.running(NAME, STREAM):
        pass
    assert time.monotonic() - started < stretched(120)
    lab.drain(NAME)
    assert sum(one["n"] for one in lab.documents(f"{NAME}-minute").values()) == 8_100
    assert len(rows(lab)) == len(lab.documents(f"{NAME}-tens"))


@pytest.mark.guarantee("G765")
def test_an_index_that_is_gone_is_made_again_and_restored(lab: AuditLab) -> None:
    before = stored(lab)
    newest = max(lab.ledger.result_indices(NAME) & {f"{NAME}-tens-2026.10", f"{NAME}-tens-2026.11"})
    request(lab.settings.elasticsearch_url, "DELETE", f"/{newest}", timeout_s=60)
    assert f"index {newest} no longer exists" in failed_start(lab)
    restore(lab)
    assert stored(lab) == before
