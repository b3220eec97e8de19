"""CPU time and memory of a process and everything it started, as the kernel counts them."""

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
"""The kernel walks through all pages of a process to weigh it, so that is done less often."""


def tree_cpu_s(root: int) -> float:
    """CPU-seconds (user and system) of process `root` and all below it: of those that live, and of those that ended and
    were waited for by their parent."""
    return sum(cpu_by_role(root).values())


def tree_memory_mb(root: int) -> float:
    """Memory of process `root` and all below it, in MiB; what several share counts once."""
    return sum(memory_mb_by_role(root).values())


def memory_mb_by_role(root: int) -> dict[str, float]:
    """The same, by what the processes are (`cpu_by_role`)."""
    totals = dict.fromkeys(_ROLES, 0.0)
    with contextlib.suppress(psutil.NoSuchProcess):
        driver = psutil.Process(root)
        for process in [driver, *driver.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                totals[role_of(process, root)] += process.memory_full_info().pss / 2**20
    return totals


def machine_cpu_s() -> float:
    """CPU-seconds that all processes and the kernel of this machine have used since it started."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def cpu_by_role(root: int) -> dict[str, float]:
    """The same, by what the processes are: `jvm`, `driver` (`root` itself when it is none), `python` (workers and all other
    below it)."""
    totals = dict.fromkeys(_ROLES, 0.0)
    for one in _look(root):
        totals[one.role] += one.own_s + one.waited_s
    return totals


class WatchedTree:
    """The CPU time of a tree in which processes may end without being waited for, as Spark's Python workers do: their time is
    then in nobody's account. So the tree is looked at again and again, and what was seen last of a process counts."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._own_s: dict[tuple[int, float], tuple[str, float]] = {}
        """Of each process ever seen, by id and start: its role and its own time when it was last seen."""
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
        """As the function of this name says. Processes that came and went between two looks count as `python`, if their
        parent waited for them."""
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
        """The tree's memory by role when it had most, of those moments at which it was looked at."""
        return self._peak_mb

    def cpu_s(self) -> float:
        """CPU-seconds of all that ever was in the tree."""
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
    """Kill process `root` and all below it. What ends meanwhile by itself, as a worker does whose parent is gone, is as good
    as killed."""
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
    """Of its children that ended and that it waited for."""


def _look(root: int) -> Iterator[_Seen]:
    """The tree's processes as they are now."""
    with contextlib.suppress(psutil.NoSuchProcess):
        driver = psutil.Process(root)
        for process in [driver, *driver.children(recursive=True)]:
            # One that ended meanwhile: its parent has its time once it waited for it.
            with contextlib.suppress(psutil.NoSuchProcess):
                role = role_of(process, root)
                times = process.cpu_times()
                waited_s = times.children_user + times.children_system
                yield _Seen((process.pid, process.create_time()), role, times.user + times.system, waited_s)
