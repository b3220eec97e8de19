"""Log of a job's runner for the REST API: its last lines, or the lines after a position, without secrets."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path

from strandline.core.errors import Conflict, NotFound
from strandline.ledger.roles import LedgerReader
from strandline.services.supervision.leadership import is_on_this_machine
from strandline.services.supervision.runner_process import runner_name

BYTES_MAX = 1 << 20
"""Maximum number of bytes of a log in one response."""
# Each pattern needs one pass over a line: lines of other programs can be one word of a million characters.
_IN_URL = re.compile(r"://[^\s/@'\"]*@")
_NAMED = re.compile(
    r"(?i)((?<![\w-])(?=[\w-]*?(?:password|passwd|secret|token|api[-_]?key|authorization))[\w-]++[\"']?\s*[=:]\s*[\"']?"
    r"(?:bearer\s+|basic\s+)?)[^\s\"',;&}]+"
)


@dataclass(frozen=True)
class LogPart:
    """Some lines of a log."""

    lines: list[str]
    byte_next: int
    """Position of the next part."""


def runner_log(ledger: LedgerReader, data_dir: Path, job: str, lines: int, after: int | None) -> LogPart:
    """Return the last `lines` of the log of the job's current or last run, or the lines after `after`.

    If the log was emptied in between, the part starts at its beginning. A line longer than BYTES_MAX is truncated, and left out
    if the part begins in it. Raises NotFound if the job or its log doesn't exist. Raises Conflict, with the address to use, if
    a control service on another machine leads the job, or led it last.

    Args: after: `byte_next` of an earlier part. None for the last lines.
    """
    ledger.job(job)
    lease = ledger.leases([job]).get(job)
    if lease is not None and lease.address and not is_on_this_machine(lease.holder):
        # A file of that name on this machine belongs to an earlier run.
        raise Conflict(
            f"the log of job {job} is on the machine of control service {lease.holder}, which leads the job, and not on "
            f"{socket.gethostname()}; run strandline job logs {job} --url {lease.address}"
        )
    leader_dir = Path(lease.data_dir) if lease is not None and lease.data_dir else data_dir
    path = leader_dir / "logs" / f"{runner_name(job)}.log"
    if not path.exists():
        raise NotFound(
            f"job {job} has no log, because it has not run here; to start it, run strandline job start {job}"
        )
    with path.open("rb") as file:
        size = file.seek(0, 2)
        first = max(0, size - BYTES_MAX) if after is None or after > size else after
        if after is not None and after > size:
            first = 0
        file.seek(max(0, first - 1))
        is_within_line = first > 0 and file.read(1) != b"\n"
        text = file.read(BYTES_MAX)
    whole = text[: text.rfind(b"\n") + 1]  # an incomplete line is returned completely with the next part
    if not whole and len(text) == BYTES_MAX:  # part of a longer line
        return LogPart([] if is_within_line else [_beginning(text)], first + len(text))
    # The end of a line, without its beginning, can be the end of a secret.
    shown = whole[whole.find(b"\n") + 1 :] if is_within_line else whole
    found = [without_secrets(line) for line in shown.decode("utf-8", "replace").splitlines()]
    return LogPart(found[-lines:] if after is None else found, first + len(whole))


def _beginning(text: bytes) -> str:
    """Return the first half of a text. A secret that continues after the end of `text` can't be recognized, and is in the other
    half."""
    hidden = without_secrets(text.decode("utf-8", "replace"))
    return f"{hidden[: len(text) // 2]} (the line is longer)"


def without_secrets(line: str) -> str:
    """Return the line without credentials in URLs and values after names like `password`. Strandline logs no secrets, but it
    doesn't control messages of libraries and servers."""
    return _NAMED.sub(r"\1***", _IN_URL.sub("://***@", line))
