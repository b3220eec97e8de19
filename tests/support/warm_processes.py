"""Processes that begin with their modules imported: gateways, and those that race for a row of the ledger.

Importing is most of the cost of a start, and the tests start a hundred gateways. So one process imports them all (the
fork server of `multiprocessing`). Each gateway is its child: a separate process with its own signals, files, and
environment that runs the module like `python -m`. The fault tests, which measure how soon a gateway is back, and those
of whole stacks use the command.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from strandline.ingest.registry import own_gateways

MODULES = {name.replace("-", "_"): gateway.module for name, gateway in own_gateways().items()}
"""The gateway of each protocol."""
WARM = multiprocessing.get_context("forkserver")
WARM.set_forkserver_preload([__name__, "pytest", *MODULES.values()])


class WarmProcess:
    """A module that runs in its own process. Members with names of `subprocess.Popen` have the same meaning."""

    def __init__(self, module: str, environment: Mapping[str, str], log: Path, host_name: str = "") -> None:
        """Append its output to the file `log`. It leads a session, so that it can be killed with all its children.

        `host_name`: replaces this host's name.
        """
        # A daemon: what a test leaves behind ends with the tests.
        arguments = (module, dict(environment), str(log), host_name)
        self._process = WARM.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(module: str, environment: dict[str, str], log: str, host_name: str) -> None:
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(environment)
    if host_name:
        socket.gethostname = lambda: host_name
    sys.argv = [module]
    sys.modules.pop(module, None)  # as `__main__` it is executed again, but its imports are not
    runpy.run_module(module, run_name="__main__", alter_sys=True)
