"""CPU time of a process and everything it started, as the kernel counts it."""

from __future__ import annotations

import contextlib

import psutil


def tree_cpu_s(root: int) -> float:
    """CPU-seconds (user and system) of process `root` and all below it: of those that live, and of those that ended and
    were waited for by their parent."""
    return sum(cpu_by_role(root).values())


def machine_cpu_s() -> float:
    """CPU-seconds that all processes and the kernel of this machine have used since it started."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def cpu_by_role(root: int) -> dict[str, float]:
    """The same, by what the processes are: `jvm`, `driver` (`root` itself when it is none), `python` (workers and all other
    below it)."""
    totals = {"driver": 0.0, "jvm": 0.0, "python": 0.0}
    with contextlib.suppress(psutil.NoSuchProcess):
        driver = psutil.Process(root)
        for process in [driver, *driver.children(recursive=True)]:
            # One that ended meanwhile: its parent has its time once it waited for it.
            with contextlib.suppress(psutil.NoSuchProcess):
                role = "jvm" if process.name() == "java" else "driver" if process.pid == root else "python"
                totals[role] += sum(process.cpu_times()[:4])
    return totals
