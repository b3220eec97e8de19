"""A machine within this one: processes with mounts, process ids and a network of their own, which end when it ends.

It is one process that does nothing, in new namespaces of Linux; everything else is started in these. However the tests end, the
kernel then kills all of it, and takes its mounts, bridges and rules away.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

CLONE_NEWNET = 0x40000000
PROGRAMS = ("runc", "debootstrap", "docker-compose", "iptables", "ip", "tini-static", "unshare", "nsenter", "setpriv")
PACKAGES = "runc debootstrap docker-compose iptables iproute2 tini util-linux"


def missing() -> str:
    """Return the reason why containers can't run here. Empty if they can."""
    if os.geteuid() != 0:
        return "only root may make namespaces"
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"not installed: {', '.join(absent)} (Debian: apt-get install {PACKAGES})" if absent else ""


class Machine:
    """Close it, or use it in a `with` block. `own_network=False`: it has the network of this machine."""

    def __init__(self, own_network: bool) -> None:
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        unshare += ["--net"] if own_network else []
        script = "mount -t tmpfs tmpfs /run && { ip link set lo up || true; } && echo ready && exec sleep infinity"
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *unshare, "tini-static", "--", "sh", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if said != "ready\n":
            raise RuntimeError(f"this kernel refuses the namespaces: {said}")
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        self.pid = int(children)
        """Id of its first process."""
        namespaces = ["--mount", "--pid", *(["--net"] if own_network else [])]
        self._enter = ["nsenter", f"--target={self.pid}", *namespaces, "--"]

    def command(self, *arguments: str | Path) -> list[str]:
        """The command that runs these arguments in the machine."""
        return [*self._enter, *map(str, arguments)]

    def run(self, *arguments: str | Path, given: str = "", timeout_s: float = 60) -> str:
        """Run a program to its end and return what it printed; `given` is what it reads. Raises RuntimeError where it fails."""
        ran = subprocess.run(
            self.command(*arguments), input=given, capture_output=True, text=True, check=False, timeout=timeout_s
        )
        if ran.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, arguments))} ended with {ran.returncode}: {ran.stdout}{ran.stderr}")
        return ran.stdout

    @contextmanager
    def network(self) -> Iterator[None]:
        """While inside, sockets of this thread, and of threads that it starts, are opened in the machine's network."""
        with open("/proc/thread-self/ns/net") as home, open(f"/proc/{self.pid}/ns/net") as there:
            _enter_network(there.fileno())
            try:
                yield
            finally:
                _enter_network(home.fileno())

    def close(self) -> None:
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Machine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _enter_network(file: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(file, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
