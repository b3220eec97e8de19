"""Stops the running processes of an embedded stack, by the recorded pids."""

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
"""Seconds that each part has to end. The control service waits for its runners, and they wait for their slice. The watcher
stops the part that it is starting."""
RUNNER_STOP_TIMEOUT_S = 20.0


def stop_timeout_s(name: str) -> float:
    """Return the seconds that a process has to stop. A gateway of an unusable package has the default time."""
    with suppress(StrandlineError):
        for gateway in installed_gateways().values():
            if gateway.part == name:
                return gateway.stop_timeout_s
    return STOP_TIMEOUTS_S.get(name, RUNNER_STOP_TIMEOUT_S)


def stop_all(data_dir: Path, progress: ProgressDisplay) -> None:
    """Stop the running parts of the stack, in the reverse order of their start.

    1. The watcher, which would restart stopped parts.
    2. The gateways, so that no record is accepted that can't be persisted.
    3. The control service, which ends its runners after their slice. It must end before the runners, because it would restart
       them.
    4. Runners whose control service crashed, and the processes they left.
    5. The servers, Kafka last, because the others still write to it.

    Then the records of ended processes are deleted. A process that lives was started in the meantime. Without its record, it
    could not be stopped.
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
    recorded = pids.all()  # before the check which of them live: processes that are recorded later must be kept
    for name in recorded.keys() - pids.alive().keys():
        pids.remove(name, recorded[name])


def stop_part(name: str, pids: PidFile, progress: ProgressDisplay) -> None:
    """Stop one part if it runs."""
    pid = pids.alive().get(name)
    if pid is not None:
        with progress.step(f"stopping {name}", f"{name} is stopped"):
            stop(name, pid, pids, timeout_s=stop_timeout_s(name))


def record_orphan(data_dir: Path, pids: PidFile) -> None:
    """Record an Elasticsearch whose `up` was killed after the start and before the record."""
    pid = find_server(data_dir / "elasticsearch")
    if pid is not None and pids.alive().get("elasticsearch") != pid:
        pids.add("elasticsearch", pid)
