"""The log of a job's runner, as the REST API gives it: its last lines, or what came since; no secret in it."""

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
"""So much of a log is given at once, at most."""
# Each is found in one pass over a line: what others write may be one word of a million characters.
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
    """Where the next part begins."""


def runner_log(ledger: LedgerReader, data_dir: Path, job: str, lines: int, after: int | None) -> LogPart:
    """The last `lines` of the log of the job's present or last run, or with `after` (the `byte_next` of an earlier part) what has
    been written since; if the log was emptied in between, from its beginning. Of a line longer than BYTES_MAX the beginning is
    given, and nothing where the part begins within it.

    Raises NotFound when there is no such job, or no log of it; Conflict, with the address to ask, when another control service
    leads the job, or did last, on another machine.
    """
    ledger.job(job)
    lease = ledger.leases().get(job)
    if lease is not None and lease.address and not is_on_this_machine(lease.holder):
        # A file of that name here is of an earlier run.
        raise Conflict(
            f"the log of job {job} is kept by control service {lease.holder}, which leads it, and not on "
            f"{socket.gethostname()}; ask that: strandline job logs {job} --url {lease.address}"
        )
    leader_dir = Path(lease.data_dir) if lease is not None and lease.data_dir else data_dir
    path = leader_dir / "logs" / f"{runner_name(job)}.log"
    if not path.exists():
        raise NotFound(f"job {job} has no log yet: it has not run here; start it: strandline job start {job}")
    with path.open("rb") as file:
        size = file.seek(0, 2)
        first = max(0, size - BYTES_MAX) if after is None or after > size else after
        if after is not None and after > size:
            first = 0
        file.seek(max(0, first - 1))
        is_within_line = first > 0 and file.read(1) != b"\n"
        text = file.read(BYTES_MAX)
    whole = text[: text.rfind(b"\n") + 1]  # a line that is just being written comes whole with the next part
    if not whole and len(text) == BYTES_MAX:  # part of a longer line
        return LogPart([] if is_within_line else [_beginning(text)], first + len(text))
    # The rest of a line, without its beginning, may be the rest of a secret.
    shown = whole[whole.find(b"\n") + 1 :] if is_within_line else whole
    found = [without_secrets(line) for line in shown.decode("utf-8", "replace").splitlines()]
    return LogPart(found[-lines:] if after is None else found, first + len(whole))


def _beginning(text: bytes) -> str:
    """Half of it: a secret that goes on behind the end of `text` can't be recognised, and is in the other half."""
    hidden = without_secrets(text.decode("utf-8", "replace"))
    return f"{hidden[: len(text) // 2]} (the line is longer)"


def without_secrets(line: str) -> str:
    """The line without what stands before the `@` of a URL, or behind a name like `password`. Strandline logs no secret; what
    a library or a server says is not in its hands."""
    return _NAMED.sub(r"\1***", _IN_URL.sub("://***@", line))
