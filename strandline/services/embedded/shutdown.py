"""Stops what runs of an embedded stack, by the recorded pids."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from strandline.core.errors import StrandlineError
from strandline.ingest.registry import installed_gateways
from strandline.services.embedded.elasticsearch_server import find_server
from strandline.services.embedded.progress_display import ProgressDisplay
from strandline.services.processes.child_process import stop
from strandline.services.processes.pids import PidFile
from strandline.services.processes.process_tree import kill_tree, tree_mark

WATCHER = "watcher"
STOP_TIMEOUTS_S = {
    WATCHER: 45.0,
    "kafka": 30.0,
    "elasticsearch": 30.0,
    "mqtt": 5.0,
    "control": 40.0,
}
"""How long each may take to end by itself. The control service waits for its runners, and they for their slice; the watcher
stops the part that it is just starting."""
RUNNER_STOP_TIMEOUT_S = 20.0


def stop_timeout_s(name: str) -> float:
    """Return the time that a process has to stop. A gateway of a package that can't be used any more has the usual time."""
    with suppress(StrandlineError):
        for gateway in installed_gateways().values():
            if gateway.part == name:
                return gateway.stop_timeout_s
    return STOP_TIMEOUTS_S.get(name, RUNNER_STOP_TIMEOUT_S)


def stop_all(data_dir: Path, progress: ProgressDisplay) -> None:
    """Stop what runs of the stack, the last started first.

    1. The watcher, which would start again what is stopped.
    2. The gateways, so that no record is accepted that would not be persisted.
    3. The control service, which ends its runners after their slice; before them, because it would start them again.
    4. Runners whose control service died, and the processes they left behind.
    5. The servers, Kafka last: the others still write to it.

    Then the records of dead processes go. One that lives was started meanwhile: without its record nothing could stop it.
    """
    pids = PidFile(data_dir)
    stop_part(WATCHER, pids, progress)
    record_orphan(data_dir, pids)
    alive = pids.alive()  # not before: the watcher may have started one of them at the last moment
    runners = [name for name in alive if name.startswith("runner-")]
    gateways = [name for name in alive if name.startswith("gateway-")]
    for name in (*gateways, "control", *runners):
        stop_part(name, pids, progress)
    kill_tree(tree_mark(data_dir), whole_stack=True)
    for name in ("mqtt", "elasticsearch", "kafka"):
        stop_part(name, pids, progress)
    recorded = pids.all()  # before the look which of them live: what is recorded behind it is not meant
    for name in recorded.keys() - pids.alive().keys():
        pids.remove(name, recorded[name])


def stop_part(name: str, pids: PidFile, progress: ProgressDisplay) -> None:
    """Stop one part if it runs."""
    pid = pids.alive().get(name)
    if pid is not None:
        with progress.step(f"stopping {name}", f"{name} is stopped"):
            stop(name, pid, pids, timeout_s=stop_timeout_s(name))


def record_orphan(data_dir: Path, pids: PidFile) -> None:
    """Record an Elasticsearch whose `up` was killed between starting and recording it."""
    pid = find_server(data_dir / "elasticsearch")
    if pid is not None and pids.alive().get("elasticsearch") != pid:
        pids.add("elasticsearch", pid)
