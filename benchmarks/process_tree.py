"""CPU time and memory of a process and its descendants, from the kernel's counters."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import NamedTuple, Self

import psutil

_ROLES = ("driver", "jvm", "python")
_LOOK_EVERY_S = 0.2
_LOOKS_A_WEIGHING = 3
"""Number of samples of the CPU time per sample of the memory. For the memory, the kernel checks all pages of a process."""


def tree_cpu_s(root: int) -> float:
    """Return CPU-seconds (user and system) of process `root` and its descendants: of running ones, and of ended ones that their
    parent waited for."""
    return sum(cpu_by_role(root).values())


def tree_memory_mb(root: int) -> float:
    """Return the memory of process `root` and its descendants in MiB. Shared memory counts once."""
    return sum(memory_mb_by_role(root).values())


def memory_mb_by_role(root: int) -> dict[str, float]:
    """Return the memory by role of the processes. See `cpu_by_role`."""
    totals = dict.fromkeys(_ROLES, 0.0)
    with contextlib.suppress(psutil.NoSuchProcess):
        driver = psutil.Process(root)
        for process in [driver, *driver.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                totals[role_of(process, root)] += process.memory_full_info().pss / 2**20
    return totals


def machine_cpu_s() -> float:
    """Return the CPU-seconds of all processes and the kernel of this machine since it started."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def cpu_by_role(root: int) -> dict[str, float]:
    """Return CPU-seconds by role: `jvm`, `driver` (`root` itself, if it is no JVM), `python` (workers and all other
    descendants)."""
    totals = dict.fromkeys(_ROLES, 0.0)
    for one in _look(root):
        totals[one.role] += one.own_s + one.waited_s
    return totals


class WatchedTree:
    """CPU time of a tree whose processes can end without being waited for, like Spark's Python workers. The kernel then doesn't
    count their time for the parent. So the tree is sampled repeatedly, and the last sample of each process counts."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._own_s: dict[tuple[int, float], tuple[str, float]] = {}
        """Id and start of each process ever seen -> its role and its own time in the last sample."""
        self._peak_mb = dict.fromkeys(_ROLES, 0.0)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def cpu_by_role(self) -> dict[str, float]:
        """Return CPU-seconds by role, as the function `cpu_by_role`. Processes that started and ended between two samples count
        as `python`, if their parent waited for them."""
        with self._lock:
            accounted_s = 0.0
            for one in _look(self._root):
                self._own_s[one.id] = (one.role, one.own_s)
                accounted_s += one.own_s + one.waited_s
            totals = dict.fromkeys(_ROLES, 0.0)
            for role, own_s in self._own_s.values():
                totals[role] += own_s
            totals["python"] += max(0.0, accounted_s - sum(totals.values()))
            return totals

    @property
    def peak_mb(self) -> dict[str, float]:
        """Maximum memory of the tree by role, in the samples."""
        return self._peak_mb

    def cpu_s(self) -> float:
        """Return the CPU-seconds of all processes that ever were in the tree."""
        return sum(self.cpu_by_role().values())

    def _keep_looking(self) -> None:
        for look in itertools.count():
            if self._ended.wait(_LOOK_EVERY_S):
                return
            self.cpu_by_role()
            if look % _LOOKS_A_WEIGHING == 0:
                memory_mb = memory_mb_by_role(self._root)
                if sum(memory_mb.values()) > sum(self._peak_mb.values()):
                    self._peak_mb = memory_mb


def kill_with_children(root: int) -> None:
    """Kill process `root` and its descendants. A process that exits in the meantime, like a worker whose parent has ended,
    needs no kill."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(root)
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


def role_of(process: psutil.Process, root: int) -> str:
    return "jvm" if process.name() == "java" else "driver" if process.pid == root else "python"


class _Seen(NamedTuple):
    id: tuple[int, float]
    role: str
    own_s: float
    waited_s: float
    """CPU-seconds of its children that ended and that it waited for."""


def _look(root: int) -> Iterator[_Seen]:
    """Yield the present processes of the tree."""
    with contextlib.suppress(psutil.NoSuchProcess):
        driver = psutil.Process(root)
        for process in [driver, *driver.children(recursive=True)]:
            # The process has ended; its parent has its time after it waited for it.
            with contextlib.suppress(psutil.NoSuchProcess):
                role = role_of(process, root)
                times = process.cpu_times()
                waited_s = times.children_user + times.children_system
                yield _Seen((process.pid, process.create_time()), role, times.user + times.system, waited_s)
