"""The two sides under the same load: a job of Strandline with its control service, and plain Spark with a loop that restarts it
immediately. Each is killed repeatedly, when a new result is found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.recovery.feed import Feed
from benchmarks.recovery.results_index import ResultsIndex
from benchmarks.recovery.work import Verdict, judge, pipeline_text, stream_text
from benchmarks.runners import runner_pid, warm_standby
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.services.client import ControlClient
from strandline.services.embedded.addresses import settings_environment
from strandline.services.processes.process_tree import MARK_VARIABLE, kill_tree

TIMEOUT_S = 240.0
_POLL_S = 0.1


@dataclass(frozen=True)
class Kill:
    """One kill, with seconds since it."""

    first_result_s: float
    """Seconds until a search finds the first result of a new window."""
    fresh_s: float
    """Seconds until results follow the feed as closely as before."""
    records: int | None
    """Number of records that were read again, by the job's status. None for plain Spark, which doesn't report it."""


@dataclass
class Recoveries:
    """The kills of one kind."""

    name: str
    kills: list[Kill] = field(default_factory=list)


class StrandlineSide:
    """One job, its control service, and its feed."""

    def __init__(self, settings: Settings, name: str, reach: str, feed: Feed) -> None:
        self._settings, self._name, self._reach, self._feed = settings, name, reach, feed
        self._results = ResultsIndex(settings.elasticsearch_url, f"{name}-second")
        self._service: subprocess.Popen[bytes] | None = None
        self._control = ControlClient(f"http://127.0.0.1:{settings.control_port}")
        self._standbys = 0

    def start_service(self, standbys: int) -> None:
        """Start the control service, in place of the previous one."""
        self.stop_service()
        self._standbys = standbys
        settings = self._settings.model_copy(update={"standbys": standbys})
        with (self._settings.data_dir / "control.log").open("ab") as log:
            self._service = subprocess.Popen(
                [sys.executable, "-m", "strandline.services.control"],
                env=settings_environment(settings),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        _wait(self._answers, "the control service answers")

    def stop_service(self) -> None:
        if self._service is not None:
            self._service.terminate()
            self._service.wait(60)
            self._service = None

    def apply(self, recovery: str) -> None:
        """Apply the job with this kind of recovery, and wait until a run of it follows the feed."""
        before = self._start()
        text = f"{stream_text(self._name)}---\n{pipeline_text(self._name, self._reach, recovery)}"
        self._control.apply(text.encode(), "recovery.yaml")
        _wait(lambda: self._start() != before, "a run of the new version")
        self._results.wait_until_fresh(self._feed, TIMEOUT_S)

    def wait_until_fresh(self) -> None:
        self._results.wait_until_fresh(self._feed, TIMEOUT_S)

    def kill(self, way: str) -> Kill:
        """Kill the runner once, with all its processes. Raises RuntimeError.

        Args: `way`: Kind of start that the next run must use.
        """
        if self._standbys:
            _wait(self._has_warm_standby, "a warm standby")
        # Results can still be fresh because of the run of the previous service.
        _wait(lambda: self._runner() is not None, "a runner")
        self.wait_until_fresh()
        pid = self._runner()
        if pid is None:
            raise RuntimeError(f"job {self._name} has no runner")
        mark = _mark_of(pid)
        self._results.wait_for_newer(self._results.newest_ms(), TIMEOUT_S)
        killed_at = time.monotonic()
        kill_tree(mark)
        # Exclude the last results of the killed run.
        first_at = self._results.wait_for_newer(self._results.settled_ms(), TIMEOUT_S)
        fresh_at = self._results.wait_until_fresh(self._feed, TIMEOUT_S)
        start = self._control.job(self._name)["last_start"]
        if start["way"] != way:
            raise RuntimeError(f"the run began by {start['way']}, not by {way}")
        return Kill(first_at - killed_at, fresh_at - killed_at, start["records"])

    def end(self) -> Verdict:
        """Stop the feed, drain the job, and compare its results with the sent records."""
        sent = self._feed.end()
        self._control.order(self._name, "drain")
        self._control.wait_for_job(self._name, lambda job: job["state"] == "drained", "drained", TIMEOUT_S)
        verdict = judge(sent, self._results.documents())
        self._results.close()
        self.stop_service()
        return verdict

    def _answers(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self._settings.control_port}/healthz", trust_env=False).is_success
        except httpx.TransportError:
            return False

    def _start(self) -> int:
        """Return the epoch of the newest run, 0 before the first."""
        jobs = self._control.get("/v1/jobs")["jobs"]
        return next((job["last_start"]["epoch"] for job in jobs if job["name"] == self._name and job["last_start"]), 0)

    def _pids(self) -> dict[str, int]:
        found: dict[str, int] = json.loads((self._settings.data_dir / "pids.json").read_text())
        return found

    def _runner(self) -> int | None:
        with closing(Ledger.open(self._settings.ledger_url)) as ledger:
            return runner_pid(self._pids(), ledger, self._name)

    def _has_warm_standby(self) -> bool:
        with closing(Ledger.open(self._settings.ledger_url)) as ledger:
            return warm_standby(self._settings.data_dir, self._pids(), ledger) is not None


class PlainSide:
    """Plain Spark with its checkpoint, and its feed."""

    def __init__(self, settings: Settings, jars: list[Path], name: str, feed: Feed, directory: Path) -> None:
        self._settings, self._jars, self._name, self._feed, self._directory = settings, jars, name, feed, directory
        self._mark = f"plain:{directory}"
        self._results = ResultsIndex(settings.elasticsearch_url, name)
        with httpx.Client(base_url=settings.elasticsearch_url, trust_env=False, timeout=60) as index:
            fields = {"@timestamp": {"type": "date"}, "device": {"type": "keyword"}, "n": {"type": "long"}}
            body = {"mappings": {"properties": fields}, "settings": {"number_of_replicas": 0}}
            index.put(f"/{name}", json=body).raise_for_status()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the program. It begins at the end of its checkpoint."""
        root = Path(__file__).parents[2]
        arguments = ["--bootstrap", self._settings.kafka_bootstrap, "--stream", self._name, "--index", self._name]
        arguments += ["--jars", ",".join(map(str, self._jars)), "--url", self._settings.elasticsearch_url]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.recovery.plain_job",
                    *arguments,
                    "--directory",
                    str(self._directory),
                ],
                env=os.environ | {MARK_VARIABLE: self._mark, "PYTHONPATH": os.pathsep.join([str(root), *sys.path[1:]])},
                cwd=root,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> Kill:
        """Kill the program once, with its descendants, and restart it immediately. Raises RuntimeError."""
        self._results.wait_until_fresh(self._feed, TIMEOUT_S)
        self._results.wait_for_newer(self._results.newest_ms(), TIMEOUT_S)
        killed_at = time.monotonic()
        self.end_process()
        self.start()
        first_at = self._results.wait_for_newer(self._results.settled_ms(), TIMEOUT_S)
        return Kill(first_at - killed_at, self._results.wait_until_fresh(self._feed, TIMEOUT_S) - killed_at, None)

    def wait_until_fresh(self) -> None:
        self._results.wait_until_fresh(self._feed, TIMEOUT_S)

    def end(self) -> Verdict:
        """Stop the feed, let the program read the log to its end, and compare its results with the sent records. Raises
        RuntimeError."""
        sent = self._feed.end()
        assert self._process is not None, "the process was started"
        # Not a kill: it would cut off a batch, and the windows that the next start would write would be missing.
        self._process.terminate()
        if self._process.wait(TIMEOUT_S) != 0:
            raise RuntimeError(f"plain Spark ended with {self._process.returncode}; see {self._directory / 'log'}")
        self.end_process()
        verdict = judge(sent, self._results.documents())
        self._results.close()
        return verdict

    def end_process(self) -> None:
        kill_tree(self._mark)
        if self._process is not None:
            self._process.wait()
            self._process = None


def _mark_of(pid: int) -> str:
    """Return the mark of a runner's processes. A former standby has another mark than a runner that was started for its job."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    prefix = f"{MARK_VARIABLE}=".encode()
    return next(entry.removeprefix(prefix).decode() for entry in entries if entry.startswith(prefix))


def _wait(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {TIMEOUT_S:g} s: {what}")
        time.sleep(_POLL_S)
