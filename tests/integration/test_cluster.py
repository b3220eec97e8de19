"""A job on a standalone Spark cluster: executors that share with the driver the network and one directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.cluster.spark_cluster import SparkCluster, spark_cluster
from strandline.ledger.states import BackfillState, Desired, JobState
from strandline.processing.run.exit_codes import EXIT_DONE, EXIT_FAILED
from strandline.processing.slices.rewind import RUN_BEGINS
from tests.support.audit_lab import AuditLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(900)
BASE_MS = 1_700_000_000_000 // 60_000 * 60_000
RECORDS_A_SECOND = 200
USER = "canary-user:canary-password@"


def documents_text(name: str, recovery: str) -> str:
    return f"""
stream: {name}
partitions: 2
schema: {{device: string, ts: {{type: timestamp, unit: ms}}, value: double}}
---
pipeline: {name}
input: {{stream: {name}}}
recovery: {recovery}
event_time: {{field: ts, delay: 1s, max_ahead: null, idle_timeout: null}}
steps:
  - window: {{name: second, tumbling: 1s, by: [device], aggregate: {{n: count(*), mean: avg(value)}}}}
    emit: [{{elasticsearch: {name}-second}}]
  - window: {{name: ten, tumbling: 10s, by: [device], aggregate: {{n: sum(n), peak: max(mean)}}}}
    emit: [{{elasticsearch: {name}-ten}}]
"""


NewJob = Callable[..., "ClusterJob"]
"""Makes the job of this name, with this recovery."""


class ClusterJob:
    """A job whose drivers are processes of their own, started again as a control service would."""

    def __init__(self, lab: AuditLab, cluster: SparkCluster, name: str, directory: Path, recovery: str) -> None:
        self.lab = lab
        self.name = name
        self.codes: list[int] = []
        """Exit codes of the drivers that have ended."""
        self._log = directory / f"{name}.log"
        self._driver: subprocess.Popen[bytes] | None = None
        self._sent = 0
        url = lab.settings.elasticsearch_url.replace("http://", f"http://{USER}")
        self.secrets = {"STRANDLINE_ELASTICSEARCH_URL": url}
        settings = lab.settings.model_dump(mode="json", exclude_none=True)
        self._environment = {f"STRANDLINE_{field.upper()}": str(value) for field, value in settings.items()} | {
            "STRANDLINE_DATA_DIR": str(directory),
            "STRANDLINE_SPARK_MASTER": cluster.master,
            "STRANDLINE_SPARK_CHECKPOINT_DIR": str(cluster.checkpoint_dir),
            **cluster.driver_environment,
            **self.secrets,
        }
        lab.apply(documents_text(name, recovery))

    def start(self) -> None:
        self._driver = self._start("strandline.processing.run.process")

    def backfill(self, from_ms: int) -> BackfillState:
        """Recompute the windows that end after this time on the cluster."""
        row = self.lab.request_backfill(self.name, from_ms)
        process = self._start("strandline.processing.backfill.process", "--generation", str(row.generation))
        process.wait()
        return self.lab.ledger.backfill(self.name, row.generation).state

    def _start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, "--job", self.name, *arguments],
                env={**os.environ, **self._environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def follow(self) -> bool:
        """Whether the job has ended for good; starts the next driver where one has ended otherwise."""
        assert self._driver is not None
        if self._driver.poll() is None:
            return False
        self.codes.append(self._driver.returncode)
        assert len(self.codes) < 4, f"the drivers end again and again, with {self.codes}"
        if self._driver.returncode in (EXIT_DONE, EXIT_FAILED):
            return True
        self.start()
        return False

    def wait_until_ended(self, timeout_s: float = 120) -> int:
        try:
            wait_until(self.follow, bool, f"ended\n{self.log_tail()}", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log_tail()}") from None
        return self.codes[-1]

    def kill(self) -> None:
        if self._driver is not None and self._driver.poll() is None:
            os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.wait()

    @contextmanager
    def under_load(self) -> Iterator[None]:
        """Records come while the block runs, in real time."""
        over = threading.Event()

        def send() -> None:
            while not over.wait(0.1):
                self.send(RECORDS_A_SECOND // 10)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            yield
        finally:
            over.set()
            sender.join()

    def send(self, records: int) -> None:
        """The next records; five devices, and one record of each in 25 ms of event time."""
        lines = []
        for number in range(self._sent, self._sent + records):
            reading = {"device": f"d{number % 5}", "ts": BASE_MS + number * 5, "value": number % 977 / 7}
            lines.append(json.dumps(reading).encode())
        self._sent += records
        self.lab.send(self.name, lines)

    def committed(self) -> int:
        last = self.lab.ledger.last_checkpoint(self.name)
        return last.slice if last else 0

    def wait_for_slices(self, more: int, timeout_s: float = 120) -> None:
        """Wait until `more` more slices are committed than now."""
        wanted = self.committed() + more

        def is_there() -> bool:
            assert not self.follow(), f"the job has ended with {self.codes[-1]}\n{self.log_tail()}"
            return self.committed() >= wanted

        try:
            wait_until(is_there, bool, f"{more} slices further", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log_tail()}") from None

    def log_tail(self) -> str:
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:])

    def require_clean_audit(self) -> None:
        """All records were read, and every result is there once and right."""
        report = self.lab.audit(self.name)
        assert (report["outcome"], report["differences"]) == ("clean", 0), report
        assert report["computed"]["records"] == self._sent


@pytest.fixture(scope="module")
def secrets(elasticsearch: str) -> dict[str, str]:
    return {"STRANDLINE_ELASTICSEARCH_URL": elasticsearch.replace("http://", f"http://{USER}")}


@pytest.fixture
def cluster(secrets: dict[str, str]) -> Iterator[SparkCluster]:
    with spark_cluster(secrets=secrets) as running:
        yield running


@pytest.fixture
def new_job(audit_lab: AuditLab, cluster: SparkCluster, tmp_path: Path) -> Iterator[NewJob]:
    jobs: list[ClusterJob] = []

    def make(name: str, recovery: str = "rewind") -> ClusterJob:
        jobs.append(ClusterJob(audit_lab, cluster, name, tmp_path, recovery))
        return jobs[-1]

    yield make
    for job in jobs:
        job.kill()


def drain(job: ClusterJob) -> None:
    job.lab.ledger.set_desired(job.name, Desired.DRAINED)
    assert job.wait_until_ended() == EXIT_DONE, job.log_tail()


@pytest.mark.guarantee("G79")
@pytest.mark.long
def test_a_job_runs_in_the_executors_and_one_that_is_killed_costs_no_run(
    cluster: SparkCluster, new_job: NewJob
) -> None:
    job = new_job("cluster-small")
    job.lab.ledger.set_desired(job.name, Desired.RUNNING)
    job.start()
    with job.under_load():
        job.wait_for_slices(3, 180)
        workers_of_python = [
            [one for one in executor.children(recursive=True) if "worker_daemon" in " ".join(one.cmdline())]
            for number in (1, 2)
            for executor in cluster.executors(number)
        ]
        assert len(workers_of_python) == 2
        assert all(workers_of_python)
        cluster.kill_executor(1)
        job.wait_for_slices(3)
        wait_until(lambda: cluster.executors(1), bool, "another executor", 60)
        job.wait_for_slices(3)
    drain(job)
    assert job.codes == [EXIT_DONE], job.log_tail()
    assert list((cluster.checkpoint_dir / "scratch").glob("*/*")) == []
    for log in (cluster.directory / "logs").iterdir():
        assert "canary-password" not in log.read_text(errors="replace")
    job.require_clean_audit()


@pytest.mark.guarantee("G79")
@pytest.mark.long
@pytest.mark.parametrize("rounds", [2])
def test_executor_worker_and_master_killed_under_load(cluster: SparkCluster, new_job: NewJob, rounds: int) -> None:
    job = new_job("cluster-kills")
    job.lab.ledger.set_desired(job.name, Desired.RUNNING)
    job.start()
    with job.under_load():
        job.wait_for_slices(3, 180)
        for round_number in range(rounds):
            worker = 1 + round_number % 2
            cluster.kill_executor(worker)
            job.wait_for_slices(3)
            cluster.kill_worker(worker)
            job.wait_for_slices(3)
            cluster.start_worker(worker)
            wait_until(lambda at=worker: cluster.executors(at), bool, "an executor of the new worker", 60)  # type: ignore[misc]
            cluster.kill_master()
            job.wait_for_slices(3)
            cluster.start_master()
            job.wait_for_slices(3)
            time.sleep(2)  # sleeps: between two kills, in which the workers register again
    drain(job)
    assert job.codes == [EXIT_DONE], job.log_tail()
    job.require_clean_audit()


@pytest.mark.long
def test_a_master_that_has_forgotten_the_job_costs_a_run(cluster: SparkCluster, new_job: NewJob) -> None:
    """Such a master has the executors of an unknown job killed.

    The driver isn't informed, and requests no others.
    """
    job = new_job("cluster-forgotten")
    job.lab.ledger.set_desired(job.name, Desired.RUNNING)
    job.start()
    with job.under_load():
        job.wait_for_slices(3, 180)
        cluster.kill_master()
        for one in (cluster.directory / "recovery").iterdir():
            one.unlink()
        cluster.start_master()
        wait_until(lambda: job.follow() or job.codes, bool, "ended for want of executors", 180)
        job.wait_for_slices(3, 180)
    drain(job)
    assert "has had no executor for" in job.lab.ledger.runs(job.name)[0].message
    job.require_clean_audit()


@pytest.mark.long
def test_a_driver_that_is_killed_goes_on_from_a_snapshot_and_a_backfill_has_executors_too(
    cluster: SparkCluster, new_job: NewJob
) -> None:
    job = new_job("cluster-snapshot", recovery="snapshot")
    job.lab.ledger.set_desired(job.name, Desired.RUNNING)
    job.start()
    with job.under_load():
        job.wait_for_slices(8, 180)
        job.kill()
        job.start()
        job.wait_for_slices(3, 180)
    drain(job)
    began = [one.facts["way"] for one in job.lab.ledger.events(job.name) if one.kind == RUN_BEGINS]
    assert sorted(began) == ["rewind", "snapshot"]
    job.require_clean_audit()
    assert job.backfill(BASE_MS) is BackfillState.COMPLETE, job.log_tail()
    job.require_clean_audit()


@pytest.mark.guarantee("G79")
@pytest.mark.long
@pytest.mark.parametrize("secrets", [{}], indirect=False)
def test_an_executor_without_the_secrets_says_what_is_missing(
    cluster: SparkCluster, new_job: NewJob, secrets: dict[str, str]
) -> None:
    job = new_job("cluster-no-secrets")
    job.send(100)
    job.lab.ledger.set_desired(job.name, Desired.RUNNING)
    job.start()
    assert job.wait_until_ended(180) == EXIT_FAILED, job.log_tail()
    state = job.lab.ledger.job(job.name)
    assert state.state is JobState.FAILED
    assert "STRANDLINE_ELASTICSEARCH_URL does not name" in state.message
    assert "environment of this process and, on a cluster, of the Spark worker" in state.message
    assert "canary" not in state.message + job.log_tail()
