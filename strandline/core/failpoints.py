"""Points in a run at which a test can kill or pause the process.

They are off unless the environment variable STRANDLINE_FAILPOINTS arms them, and cost one comparison each. The variable is no
setting, because an operator should never set it.

- `STRANDLINE_FAILPOINTS='emit.written=kill'`: this process kills itself (SIGKILL) at the point.
- `STRANDLINE_FAILPOINTS='plan.recorded=kill:3'`: at the third time that this process reaches the point.
- `STRANDLINE_FAILPOINTS='commit.before_checkpoint=kill-family'`: with the JVM and the workers of the same runner.
- `STRANDLINE_FAILPOINTS='slice.written=pause:2.5'`: pauses for 2.5 s.
- `STRANDLINE_FAILPOINTS=@FILE`: the same text in a file, which is read each time.

A point that the variable arms fires in each new run of the job. A point that a file arms fires once: the first process to fire
renames the file to FILE.fired. In a file, `*=note` fires nothing and appends the name of each reached point to FILE.reached.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

FAILPOINTS = (
    # The runner's start and its rewind.
    "run.begun",
    "rewind.before_plan",
    "rewind.planned",
    "run.before_query",
    "rewind.replayed",
    # The plan of a slice, in the planner process.
    "plan.before_record",
    "plan.recorded",
    # The work of a slice: in the driver, and its emission in a Python worker.
    "slice.before_action",
    "emit.before_write",
    "stream.taken_over",
    "stream.before_commit",
    "stream.committed",
    "emit.written",
    "slice.written",
    # Its commit: in the driver, dead letters in a Python worker.
    "commit.before_dead_letters",
    "dead_letters.taken_over",
    "dead_letters.before_commit",
    "dead_letters.committed",
    "commit.before_checkpoint",
    "checkpoint.before_commit",
    "checkpoint.committed",
)
"""Names in a run, in the order in which the run reaches them."""
BACKFILL_FAILPOINTS = (
    "backfill.begun",
    "backfill.chunk_written",
    "backfill.chunk_noted",
    "backfill.before_swap",
    "backfill.swapped",
)
"""Names in a backfill, in their order. A backfill also reaches `emit.before_write` and `emit.written`."""

LIFECYCLE_FAILPOINTS = ("life.runs_ended", "life.fenced", "reset.begun", "delete.recorded")
"""Names in a reset and a deletion, in the control service."""
REPLAY_FAILPOINTS = (
    "replay.begun",
    "replay.taken_over",
    "replay.intended",
    "replay.before_commit",
    "replay.committed",
)
"""Names in the replay of dead letters."""

_VARIABLE = "STRANDLINE_FAILPOINTS"
_FAMILY_VARIABLE = "STRANDLINE_RUNNER_OF"
"""Variable that marks the processes of one runner, set by services/processes/process_tree.py, which can't be imported here."""
_armed = os.environ.get(_VARIABLE, "")
_reached: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Fire if `name`, one of the names above, is armed. Raises ValueError if its action is invalid."""
    if _armed:
        _reach(name)


def _reach(name: str) -> None:
    assert name in FAILPOINTS + BACKFILL_FAILPOINTS + LIFECYCLE_FAILPOINTS + REPLAY_FAILPOINTS, (
        f"{name} is not in the list of failpoints"
    )
    file = Path(_armed[1:]) if _armed.startswith("@") else None
    try:
        text = file.read_text(encoding="utf-8") if file else _armed
    except FileNotFoundError:
        return
    orders = dict(order.strip().split("=", 1) for order in text.split(",") if order.strip())
    order = orders.get(name, orders.get("*"))
    if order is None:
        return
    action, _, argument = order.partition(":")
    if action == "note" and file:
        with Path(f"{file}.reached").open("a", encoding="utf-8") as reached:
            reached.write(f"{name}\n")
        return
    if action not in ("kill", "kill-family", "pause"):
        raise ValueError(
            f"{_VARIABLE}: {name}={order} is not an action; set kill, kill:N, kill-family, kill-family:N, or "
            "pause:SECONDS"
        )
    _reached[name] += 1
    if action != "pause" and _reached[name] != int(argument or 1):
        return
    if file:
        try:
            file.rename(f"{file}.fired")
        except FileNotFoundError:
            return  # another process fired first
    if action == "pause":
        time.sleep(float(argument))
    else:
        _kill(with_family=action == "kill-family")


def _kill(*, with_family: bool) -> None:
    mark = os.environ.get(_FAMILY_VARIABLE)
    if with_family and mark is not None:
        entry = f"{_FAMILY_VARIABLE}={mark}".encode()
        for process in Path("/proc").iterdir():
            try:
                if process.name != str(os.getpid()) and entry in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
            except (OSError, ValueError):
                continue  # not a process, or it ended in the meantime
    os.kill(os.getpid(), signal.SIGKILL)
