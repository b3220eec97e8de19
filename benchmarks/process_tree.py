"""CPU time of a process and everything it started, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def tree_cpu_s(root: int) -> float:
    """CPU-seconds (user and system) of process `root` and all below it: of those that live, and of those that ended and
    were waited for by their parent."""
    return sum(cpu_by_role(root).values())


def machine_cpu_s() -> float:
    """CPU-seconds that all processes and the kernel of this machine have used since it started."""
    values = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, values)
    return (user + nice + system + irq + softirq) / _TICKS_A_SECOND


def cpu_by_role(root: int) -> dict[str, float]:
    """The same, by what the processes are: `driver` (`root` itself), `jvm`, `python` (workers and all other below it)."""
    parents: dict[int, int] = {}
    found: dict[int, tuple[str, float]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, _, rest = (entry / "stat").read_text(errors="replace").partition("(")[2].rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile; its parent has its time once it waited for it
        values = rest.split()
        pid = int(entry.name)
        parents[pid] = int(values[1])
        found[pid] = (name, sum(map(int, values[11:15])) / _TICKS_A_SECOND)
    totals = {"driver": 0.0, "jvm": 0.0, "python": 0.0}
    for pid, (name, seconds) in found.items():
        if pid == root:
            totals["driver"] += seconds
        elif _is_below(pid, root, parents):
            totals["jvm" if name == "java" else "python"] += seconds
    return totals


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != root:
        pid = parents[pid]
    return pid == root
