"""The ledger of a test for processes that only pretend to work: a thread of the test queries it for them.

Importing the ledger is most of the start of such a process, and the tests start a hundred of them. For them this is a
database on a server: their requests are executed even if they are killed in the meantime.
"""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from typing import Any

from strandline.core.errors import Fenced
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import BackfillState, JobState
from tests.support.ledgers import a_checkpoint, a_slice


class Calls:
    """Supported requests."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def begin_run(self, job: str, pid: int, lease: int) -> int:
        """The epoch of the run."""
        return self._ledger.begin_run(job, pid, lease=lease).epoch

    def commit_slice(self, job: str, epoch: int) -> None:
        """Plan and commit one slice more."""
        number = self._ledger.slice_count(job) + 1
        self._ledger.plan_slice(a_slice(number, epoch, job))
        self._ledger.commit_checkpoint(a_checkpoint(number, epoch, job))

    def move_job(self, job: str, epoch: int, state: str, message: str = "") -> None:
        self._ledger.move_job(job, JobState(state), message, epoch=epoch)

    def end_run(self, job: str, epoch: int, outcome: str, message: str = "") -> None:
        self._ledger.end_run(job, epoch, outcome, message)

    def desired(self, job: str) -> str:
        return self._ledger.job(job).desired.value

    def begin_backfill(self, job: str, generation: int) -> int:
        """The epoch of the attempt."""
        return self._ledger.begin_backfill(job, generation).epoch

    def record_chunk(self, job: str, generation: int, epoch: int) -> None:
        """One minute more is done, of 10 records and 4 results."""
        row = self._ledger.backfill(job, generation)
        self._ledger.record_backfill(
            job,
            generation,
            epoch,
            done_ms=(row.done_ms or 0) + 60_000,
            records_done=row.records_done + 10,
            results={"per_minute": 4},
            refused={},
            sample=[],
        )

    def move_backfill(self, job: str, generation: int, epoch: int, state: str, message: str = "") -> None:
        self._ledger.move_backfill(job, generation, BackfillState(state), message, epoch)


class LedgerServer(socketserver.ThreadingTCPServer):
    """Answers on a port of loopback until it is closed."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.calls = Calls(ledger)
        threading.Thread(target=self.serve_forever, args=(0.05,), name="ledger-server", daemon=True).start()

    @property
    def port(self) -> int:
        port: int = self.server_address[1]
        return port

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Answering(socketserver.StreamRequestHandler):
    """A line for each call: its name and its arguments. A line for each answer."""

    server: LedgerServer

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the process was killed
            for line in self.rfile:
                name, *arguments = json.loads(line)
                self.wfile.write(json.dumps(self._answer(name, arguments)).encode() + b"\n")

    def _answer(self, name: str, arguments: list[Any]) -> dict[str, Any]:
        try:
            return {"result": getattr(self.server.calls, name)(*arguments), "is_fenced": False}
        except Fenced:
            return {"result": None, "is_fenced": True}
