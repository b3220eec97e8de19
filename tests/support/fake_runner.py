"""A runner without work that keeps the contract with the supervisor, or breaks it in one configured way.

`python -m tests.support.fake_runner LEDGER_PORT JOB BEHAVIOUR_FILE LEASE ALIVE_FD`; without a job it is a standby that
gets one on stdin. The file is read once, when there is a job. It contains one of these words:

- obey: keep the contract
- die: exit with code 3 as soon as it runs
- die_stepping: the same, after committing a slice
- away: exit as soon as it runs, because an external service does not answer
- away_stepping: the same, after committing a slice
- starve: be killed as soon as it runs
- die_standing_by: as a standby, exit with code 3; with a job, as soon as it runs
- fail: move the job to failed and exit with 1
- ignore: run, and neither stop nor react to SIGTERM
- hang: obey, and then neither exit nor react to SIGTERM
- silent: send one sign of life and no more
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from strandline.processing.run.exit_codes import EXIT_AWAY, EXIT_TRY_AGAIN
from tests.support.ledger_caller import LedgerCaller, Refused

_ENDS = {"stopped": ("stopping", "stopped"), "drained": ("draining", "drained")}
"""Desired state -> the states that lead there."""


def main(port: str, name: str, behaviour_file: str, lease: str, alive_fd: str) -> int:
    if not name:
        if Path(behaviour_file).read_text(encoding="utf-8").strip() == "die_standing_by":
            return EXIT_TRY_AGAIN
        line = sys.stdin.readline()
        if not line:
            return 0
        order = json.loads(line)
        name, lease = order["job"], str(order["lease"])
    behaviour = Path(behaviour_file).read_text(encoding="utf-8").strip()
    told = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour in ("ignore", "hang") else lambda *_: told.set())
    # As the JVM of a real runner: below it, in a group of its own, and deaf to SIGTERM.
    subprocess.Popen(["sh", "-c", "trap '' TERM; exec sleep 600"], process_group=0)
    ask_ledger = LedgerCaller(int(port))
    try:
        epoch = ask_ledger("begin_run", name, os.getpid(), int(lease))
    except Refused:
        return 1
    os.write(int(alive_fd), b".")
    if behaviour.endswith("_stepping"):
        ask_ledger("commit_slice", name, epoch)
    if behaviour == "starve":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour.startswith("die"):
        return EXIT_TRY_AGAIN
    if behaviour.startswith("away"):
        ask_ledger("end_run", name, epoch, "failed", "Kafka does not answer")
        return EXIT_AWAY
    if behaviour == "fail":
        ask_ledger("end_run", name, epoch, "failed", "no such field")
        ask_ledger("move_job", name, epoch, "failed", "no such field")
        return 1
    ask_ledger("move_job", name, epoch, "running")
    while not told.wait(0.05):
        if behaviour != "silent":
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(int(alive_fd), b".")
        desired = ask_ledger("desired", name)
        if desired in _ENDS and behaviour != "ignore":
            for state in _ENDS[desired]:
                ask_ledger("move_job", name, epoch, state)
            ask_ledger("end_run", name, epoch, desired)
            if behaviour == "hang":
                time.sleep(600)  # sleeps: until it is killed
            return 0
    ask_ledger("end_run", name, epoch, "interrupted")
    return 0


if __name__ == "__main__":
    # The process below it is left to the supervisor on purpose.
    os._exit(main(*sys.argv[1:]))
