"""The processes that run jobs, with and without pools: a job has its own runner, or it shares a pool."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from strandline.ledger.ledger import Ledger
from strandline.services.supervision.pools import POOL_NAME
from strandline.services.supervision.runner_process import runner_name
from strandline.services.supervision.standbys import STANDBY_NAME


def runner_pid(pids: Mapping[str, int], ledger: Ledger, job: str) -> int | None:
    """Return the process that runs the job: its own runner, or the pool of its newest run. None if neither exists.

    Args: pids: Recorded processes of one control service, by name.
    """
    own = pids.get(runner_name(job))
    if own is not None:
        return own
    pools = {pid for name, pid in pids.items() if name.startswith(POOL_NAME)}
    return next((run.pid for run in ledger.runs(job, limit=1) if run.pid in pools), None)


def warm_standby(data_dir: Path, pids: Mapping[str, int], ledger: Ledger) -> str | None:
    """Return the name of a process that waits for the next start with a warm Spark: a standby, or a pool without jobs. None if
    there is none.

    Args: pids: Recorded processes of the control service with this data directory, by name.
    """
    busy = {run.pid for job in ledger.jobs() for run in ledger.runs(job.name, limit=1)}
    for name, pid in pids.items():
        log = data_dir / "logs" / f"{name}.log"
        waits = name.startswith((STANDBY_NAME, POOL_NAME)) and pid not in busy
        if waits and log.exists() and "standing by" in log.read_text(errors="replace"):
            return name
    return None
