"""A backfill that computes nothing: `python -m tests.support.fake_backfill LEDGER_PORT FILE JOB GENERATION`.

It begins an attempt, waits until FILE exists, removes it, and executes its content:

- `complete`: complete the backfill.
- `chunk`: record one more chunk, and wait again.
- `fail`: fail permanently.
- a number: end with this exit code.

Before that it leaves a child process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.ledger_caller import LedgerCaller
from tests.support.waiting import wait_until


def main(port: str, path: str, job: str, generation: str) -> int:
    subprocess.Popen(["sleep", "600"])
    ask_ledger, number = LedgerCaller(int(port)), int(generation)
    epoch = ask_ledger("begin_backfill", job, number)
    file = Path(path)
    while True:
        wait_until(file.exists, what=f"at {file}", timeout_s=600)
        order = file.read_text(encoding="utf-8")
        file.unlink()
        if order == "chunk":
            ask_ledger("record_chunk", job, number, epoch)
        elif order == "complete":
            for state in ("swapping", "complete"):
                ask_ledger("move_backfill", job, number, epoch, state)
            return 0
        elif order == "fail":
            ask_ledger("move_backfill", job, number, epoch, "failed", "the log is gone")
            return 1
        else:
            return int(order)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
