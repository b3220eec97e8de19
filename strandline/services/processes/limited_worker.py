"""Child of `LimitedWork`: `python -m strandline.services.processes.limited_worker DESCRIPTOR MODULE...`.

It imports the modules, then forks one process for each connection that it receives. That process reads one `Call`, limits
itself, and writes one `Outcome`. It has no open file, socket, or setting of the control service.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import resource
import signal
import socket
import sys
from typing import TYPE_CHECKING

from strandline.core.errors import StrandlineError, TooExpensive
from strandline.core.portable_errors import picklable
from strandline.services.processes.limited_work import RESPONSE_BYTES_MAX, STARTED, Outcome

if TYPE_CHECKING:
    from strandline.services.processes.limited_work import Call


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the control service ends this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the forked processes
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
        if not message:
            return
        with socket.socket(fileno=descriptors[0]) as connection:
            if os.fork() == 0:
                channel.close()
                _serve(connection)


def _serve(connection: socket.socket) -> None:
    """Read a call, run it, write its outcome, and exit."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with connection.makefile("rb") as stream:
            call: Call = pickle.load(stream)  # noqa: S301  # from the control service
        _limit(call)
        connection.sendall(STARTED)
        outcome = _run(call)
        with contextlib.suppress(OSError):
            connection.sendall(outcome)
    finally:
        os._exit(0)


def _limit(call: Call) -> None:
    os.environ.update(call.environment)
    signal.setitimer(signal.ITIMER_REAL, call.seconds_max)  # its signal ends the process
    address_space = _address_space() + call.bytes_max
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _run(call: Call) -> bytes:
    try:
        outcome = pickle.dumps(Outcome(call.function(*call.arguments)), pickle.HIGHEST_PROTOCOL)
        if len(outcome) < RESPONSE_BYTES_MAX:
            return outcome
        limit = f"the result has more than {RESPONSE_BYTES_MAX >> 20} MiB; return fewer or shorter values, or read fewer records"
        return pickle.dumps(Outcome(error=TooExpensive(limit)))
    except MemoryError:
        return pickle.dumps(Outcome(error=MemoryError()))
    except StrandlineError as error:
        return pickle.dumps(Outcome(error=picklable(error)))


def _address_space() -> int:
    """Address space of this process in bytes."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main()
