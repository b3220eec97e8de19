"""Runs functions on input of a request in child processes with a limit of memory and time.

`LimitedWork` is the side of the control service. Its child (`limited_worker.py`) has imported the modules already and forks a
process for each call, so that a call costs some milliseconds and no call sees data of another one.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import BoundedSemaphore, Lock
from types import MappingProxyType
from typing import Protocol, TypeVar

from strandline.core.errors import StrandlineError, TooExpensive, TransientError

T = TypeVar("T")
PROCESSES_MAX = 2
"""Maximum number of calls of each kind that run at the same time."""
_WAIT_S = 10.0
_START_S = 60.0
"""Maximum time in seconds of the child's imports."""
_MARGIN_S = 5.0
"""The kernel ends a process at its deadline. The caller waits this much longer."""
_NEARLY = 0.9
"""Share of the time limit from which a missing response counts as exceeded. The process measures its time from an earlier
moment."""
RESPONSE_BYTES_MAX = 64 << 20
"""Maximum length in bytes of a pickled result."""
STARTED = b"+"
"""First byte of a response: the limits are effective."""
_PASSED_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")
_NO_START = "the process that checks documents doesn't start; see the log of the control service"
_ALLOWED_FUNCTIONS = "STRANDLINE_ALLOW_FUNCTIONS"
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Call:
    """Request of one call, as the child reads it."""

    function: Callable[..., object]
    arguments: tuple[object, ...]
    bytes_max: int
    """Address space in bytes that the call can use in addition to that of the imported modules."""
    seconds_max: float
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """Response of one call. If `error` is set, the function raised it."""

    value: object = None
    error: BaseException | None = None


class RunLimited(Protocol):
    """Signature of `LimitedWork.run` and `run_here`."""

    def __call__(
        self, kind: str, function: Callable[..., T], *arguments: object, environment: Mapping[str, str] = ...
    ) -> T: ...


def run_here(
    kind: str, function: Callable[..., T], *arguments: object, environment: Mapping[str, str] = _NO_VARIABLES
) -> T:
    """Call the function in this process, without a limit: for a service without requests of others, and for tests."""
    return function(*arguments)


class LimitedWork:
    """Starts the child with `start` or the first call. Thread-safe. Close it at the end."""

    def __init__(self, modules: Sequence[str], bytes_max: int, seconds_max: float) -> None:
        """Args: modules: Modules that the child imports before its first call."""
        self._modules = modules
        self._bytes_max = bytes_max
        self._seconds_max = seconds_max
        self._lock = Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._turns: dict[str, BoundedSemaphore] = {}

    def start(self) -> None:
        """Start the child, so that the first call doesn't wait for its imports. Doesn't wait itself."""
        with self._lock:
            self._started()

    def run(
        self,
        kind: str,
        function: Callable[..., T],
        *arguments: object,
        environment: Mapping[str, str] = _NO_VARIABLES,
    ) -> T:
        """Return `function(*arguments)`, computed in a new process. Function, arguments, and result are pickled.

        Args: kind: Word for the work in messages, such as "preview". Each kind has its own share of processes.
            `environment`: Additional variables for the process, which otherwise has no setting and no secret of this process.
        Raises: TooExpensive: The call exceeded a limit. TransientError: Too many calls are running. All errors of the function.
        """
        with self._turn(kind):
            call = Call(function, arguments, self._bytes_max, self._seconds_max, dict(environment))
            with self._connect() as connection:
                response, seconds = self._response(connection, pickle.dumps(call, pickle.HIGHEST_PROTOCOL))
            if not response:
                raise self._exceeded(kind, seconds)
        outcome = pickle.loads(response)  # noqa: S301  # from our own child
        assert isinstance(outcome, Outcome)
        if isinstance(outcome.error, MemoryError):
            raise self._exceeded(kind, 0)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value  # type: ignore[return-value]

    def close(self) -> None:
        """End the child. Calls that still run end by their deadline."""
        with self._lock:
            self._end()

    def _response(self, connection: socket.socket, request: bytes) -> tuple[bytes, float]:
        """Return the pickled outcome, empty if the process was ended, and its running time in seconds. Raises TransientError."""
        connection.settimeout(_START_S)
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            if connection.recv(1) != STARTED:
                raise TransientError(_NO_START)
        except OSError as error:
            raise TransientError(_NO_START) from error
        began_s = time.monotonic()
        connection.settimeout(self._seconds_max + _MARGIN_S)
        try:
            with connection.makefile("rb") as stream:
                return stream.read(RESPONSE_BYTES_MAX), time.monotonic() - began_s
        except OSError:  # the process was killed, or has not ended in time
            return b"", time.monotonic() - began_s

    def _exceeded(self, kind: str, seconds: float) -> StrandlineError:
        if seconds >= self._seconds_max * _NEARLY:
            return TooExpensive(
                f"the {kind} took longer than {self._seconds_max:g} s and was ended. Nothing was changed; make "
                "the documents simpler, read fewer records, or raise STRANDLINE_CHECK_S"
            )
        return TooExpensive(
            f"the {kind} needed more than {self._bytes_max >> 20} MiB of memory and was ended. Nothing was "
            "changed; make the documents simpler, read fewer records, or raise STRANDLINE_CHECK_BYTES_MAX"
        )

    @contextmanager
    def _turn(self, kind: str) -> Iterator[None]:
        with self._lock:
            turns = self._turns.setdefault(kind, BoundedSemaphore(PROCESSES_MAX))
        if not turns.acquire(timeout=_WAIT_S):
            raise TransientError(
                f"{PROCESSES_MAX} other requests of this kind ({kind}) are running; try again in some seconds"
            )
        try:
            yield
        finally:
            turns.release()

    def _connect(self) -> socket.socket:
        """Let the child fork a process, and return the connection to it."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                with self._lock:
                    for _ in range(2):  # a child that has ended is replaced once
                        try:
                            socket.send_fds(self._started(), [b"\0"], [theirs.fileno()])
                            return ours
                        except OSError:
                            self._end()
            except BaseException:
                ours.close()
                raise
        ours.close()
        raise TransientError(_NO_START)

    def _started(self) -> socket.socket:
        if self._channel is None:
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            passed = {name: os.environ[name] for name in (*_PASSED_VARIABLES, _ALLOWED_FUNCTIONS) if name in os.environ}
            with theirs:
                self._child = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "strandline.services.processes.limited_worker",
                        str(theirs.fileno()),
                        *self._modules,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=passed,
                    pass_fds=[theirs.fileno()],
                )
        return self._channel

    def _end(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        self._channel = self._child = None
