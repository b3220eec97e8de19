"""A backfill that computes nothing: `python -m tests.support.fake_backfill FILE JOB GENERATION`.

It begins an attempt in the ledger of STRANDLINE_LEDGER_URL, waits until FILE is there, takes it away and does what stands in
it: `complete`, `chunk` (one more is done) and then waits again, `fail` (for good), or else it ends with this exit code.
Before that it leaves a child behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from strandline.ledger.ledger import Ledger
from strandline.ledger.states import BackfillState


def main(path: str, job: str, generation: str) -> int:
    subprocess.Popen(["sleep", "600"])
    ledger, number = Ledger.open(os.environ["STRANDLINE_LEDGER_URL"]), int(generation)
    row = ledger.begin_backfill(job, number)
    file = Path(path)
    while True:
        while not file.exists():
            time.sleep(0.02)
        order = file.read_text(encoding="utf-8")
        file.unlink()
        if order == "chunk":
            counts = {"per_minute": 4}
            row = ledger.record_backfill(
                job,
                number,
                row.epoch,
                done_ms=(row.done_ms or 0) + 60_000,
                records_done=row.records_done + 10,
                results=counts,
                refused={},
                sample=[],
            )
        elif order == "complete":
            ledger.move_backfill(job, number, BackfillState.SWAPPING, epoch=row.epoch)
            ledger.move_backfill(job, number, BackfillState.COMPLETE, epoch=row.epoch)
            return 0
        elif order == "fail":
            ledger.move_backfill(job, number, BackfillState.FAILED, "the log is gone", row.epoch)
            return 1
        else:
            return int(order)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
