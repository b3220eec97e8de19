"""Events that end a running job by design, in the stack of the ladder and under its load.

The job's message says what to do, and doing this leads to correct results.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from strandline.services.client import ControlClient
from strandline.services.processes.pids import PidFile
from tests.support.chaos.acts import ask
from tests.support.chaos.checker import JobVerdict, check_job
from tests.support.chaos.checking.pace import LONG, SHORT
from tests.support.chaos.dump import take_dump
from tests.support.chaos.job_stack import JobStack
from tests.support.waiting import stretched, wait_until

TIMEOUT_S = 300.0
SERVERS = ("kafka", "elasticsearch")


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[JobStack]:
    stack = JobStack(tmp_path, 11, speed=20, kinds=["control"])
    with closing(stack):
        stack.start()
        yield stack


@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_retention_that_cuts_below_the_rewind_ends_the_job_and_another_name_begins_anew(stack: JobStack) -> None:
    ask(stack, "to stop", lambda control: control.order(stack.job, "stop"))
    wait_until(lambda: state_of(stack)[0], lambda state: state == "stopped", "stopped", TIMEOUT_S)
    (last,) = stack.ask_ledger(f"SELECT offsets FROM slices WHERE job = '{stack.job}' ORDER BY number DESC LIMIT 1")
    read: dict[str, int] = last["offsets"][stack.stream]
    admin = AdminClient({"bootstrap.servers": stack.stack.addresses.kafka_bootstrap, "log_level": 0})
    places = [TopicPartition(stack.stream, int(partition), offset) for partition, offset in read.items()]
    for cut in admin.delete_records(places).values():
        cut.result(stretched(TIMEOUT_S))
    ask(stack, "to start", lambda control: control.order(stack.job, "start"))
    message = wait_until_failed(stack)
    assert "retention removed" in message and "records that its open windows need" in message
    assert "Raise the stream's retention and submit the pipeline under another name" in message

    stack.jobs[0] = replace(stack.jobs[0], name=f"{stack.job}-again")
    text = stack.text().replace("retention: 7d", "retention: 14d").encode()
    ask(stack, "to start again", lambda control: control.apply(text, "anew.yaml"))
    wait_until(
        lambda: stack.ask_ledger(f"SELECT results FROM checkpoints WHERE job = '{stack.job}'"),
        lambda rows: sum(row["results"].get(LONG, 0) for row in rows) > 10,
        "giving results",
        TIMEOUT_S,
    )
    verdict = drain_and_judge(stack, read)
    # What a sender sends again may be late, and its first copy may have been cut off.
    assert [one for one in verdict.violations if one not in verdict.late_without_cause] == []
    assert verdict.expected > 50


@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_a_ledger_that_is_put_back_ends_the_job_and_the_newest_copy_brings_it_on(
    stack: JobStack, tmp_path: Path
) -> None:
    older, newest = tmp_path / "older.sqlite", tmp_path / "newest.sqlite"
    ledger = Path(stack.ledger_url.removeprefix("sqlite:///"))
    copy(ledger, older)
    planned = stack.slices_last()
    assert planned
    stack.wait_for_results(after_slices=planned, since_s=0.0, timeout_s=TIMEOUT_S)
    with only_servers(stack):
        copy(ledger, newest)
        restore(older, ledger)
    message = wait_until_failed(stack)
    assert f"the ledger is older than what job {stack.job} has written" in message
    assert "restore the newest copy of the ledger" in message
    with only_servers(stack):
        restore(newest, ledger)
    began_s, planned = time.monotonic(), stack.slices_last()
    assert planned
    stack.wait_for_results(after_slices=planned, since_s=began_s, timeout_s=TIMEOUT_S)
    verdict = drain_and_judge(stack, {})
    assert verdict.violations == []
    assert verdict.epochs > 1 and verdict.expected > 50


def state_of(stack: JobStack) -> tuple[str, str]:
    """The job's state, and why; empty while the ledger can't be asked."""
    rows = stack.ask_ledger(f"SELECT state, message FROM jobs WHERE name = '{stack.job}'")
    return (rows[0]["state"], rows[0]["message"]) if rows else ("", "")


def wait_until_failed(stack: JobStack) -> str:
    """Return why it has failed."""
    return wait_until(lambda: state_of(stack), lambda found: found[0] == "failed", "failed", TIMEOUT_S)[1]


def drain_and_judge(stack: JobStack, read_from: dict[str, int]) -> JobVerdict:
    """`read_from`: where the log began when the job was first run."""
    for load in stack.loads:
        load.stop()
    with ControlClient(stack.stack.addresses.api_url) as control:
        control.order(stack.job, "drain")
    wait_until(lambda: state_of(stack)[0], lambda state: state == "drained", "drained", TIMEOUT_S)
    dump = take_dump(
        stack.job,
        stack.stream,
        [SHORT, LONG],
        f"{stack.job}-{SHORT}",
        bootstrap=stack.stack.addresses.kafka_bootstrap,
        ledger_url=stack.ledger_url,
        index_url=stack.stack.addresses.elasticsearch_url,
    )
    dump.speed, dump.kafka_away, dump.read_from = stack.speed, stack.kafka_away, read_from
    return check_job(dump, stack.job, stack.stream)


@contextmanager
def only_servers(stack: JobStack) -> Iterator[None]:
    """Kill all that has the ledger open, and start it again at the end."""
    pids = PidFile(stack.directory)

    def others() -> dict[str, int]:
        return {name: pid for name, pid in pids.alive().items() if name not in SERVERS}

    for pid in {*others().values(), *stack.family()}:
        os.kill(pid, signal.SIGKILL)
    wait_until(others, lambda alive: not alive, "gone", TIMEOUT_S)
    yield
    stack.mend_all(["control", "gateway-http"])


def copy(ledger: Path, into: Path) -> None:
    with closing(sqlite3.connect(ledger, timeout=30)) as source, closing(sqlite3.connect(into)) as copied:
        source.backup(copied)


def restore(copied: Path, ledger: Path) -> None:
    for path in ledger.parent.glob(f"{ledger.name}*"):
        path.unlink()
    copy(copied, ledger)
