"""Events of a sender, one JSON line per event, in the sender's order:

    {"op": "invoke", "at_s": 12.3, "client": "a", "request": 7, "records": {ID: HASH, ...}}   about to be sent
    {"op": "ok",     "at_s": 12.4, "request": 7}                 acknowledged: every record of it
    {"op": "fail",   "at_s": 12.4, "request": 7, "why": "413"}   refused: the answer says that nothing of it was persisted
    {"op": "info",   "at_s": 12.4, "request": 7, "why": "..."}   unknown: no answer, or one that leaves it open

A request is sent once. A sender that resends records invokes another request, so an id was sent as often as invocations
contain it. Times are of the machine's monotonic clock.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path


def payload_hash(value: bytes) -> str:
    """Return the hash of a record's bytes for the history."""
    return hashlib.blake2b(value, digest_size=8).hexdigest()


class History:
    """Writes a history. Several threads may use it; the order of the lines is the order of the calls."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", encoding="utf-8", buffering=1 << 16)
        self._lock = threading.Lock()
        self._requests = 0
        self._open: dict[int, tuple[float, int]] = {}
        self.records: Counter[str] = Counter()
        """Records by the outcome of their requests; an `invoke` counts at once."""
        self.reasons: Counter[str] = Counter()
        """Requests that were not acknowledged, by the reason."""
        self.ok_last_s: float | None = None
        self.latencies_s: list[tuple[float, float, str]] = []
        """For each settled request: time of the invocation, duration, and outcome."""

    def invoke(self, client: str, records: Sequence[tuple[str, bytes]]) -> int:
        """Note that the records, id and bytes, are about to be sent; return the number of the request."""
        hashes = {record_id: payload_hash(value) for record_id, value in records}
        with self._lock:
            self._requests += 1
            request = self._requests
            at_s = self._write({"op": "invoke", "client": client, "request": request, "records": hashes})
            self._open[request] = (at_s, len(hashes))
            self.records["invoke"] += len(hashes)
        return request

    def ok(self, request: int) -> None:
        """Every record of the request was acknowledged."""
        self._settle("ok", request, None)

    def fail(self, request: int, why: str) -> None:
        """Record that the sender got the answer that nothing of the request was persisted."""
        self._settle("fail", request, why)

    def info(self, request: int, why: str) -> None:
        """The sender can't know what became of the request. A timeout belongs here, never to `fail`."""
        self._settle("info", request, why)

    def open_since_s(self) -> list[float]:
        """Times at which the unsettled requests were invoked."""
        with self._lock:
            return [at_s for at_s, _ in self._open.values()]

    def flush(self) -> None:
        """Have everything in the file that was noted until now."""
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _settle(self, op: str, request: int, why: str | None) -> None:
        with self._lock:
            at_s = self._write({"op": op, "request": request} | ({"why": why} if why else {}))
            invoked_s, count = self._open.pop(request)
            self.records[op] += count
            self.latencies_s.append((invoked_s, at_s - invoked_s, op))
            if why is not None:
                self.reasons[why] += 1
            if op == "ok":
                self.ok_last_s = at_s

    def _write(self, event: dict[str, object]) -> float:
        at_s = time.monotonic()
        self._file.write(json.dumps(event | {"at_s": round(at_s, 6)}, separators=(",", ":")) + "\n")
        return at_s
