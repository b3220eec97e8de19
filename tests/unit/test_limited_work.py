"""Functions on input of a request run in processes with a limit of memory and time, without secrets and connections."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing

import psutil
import pyarrow as pa
import pytest

from strandline.core.errors import InvalidDocument, Problem, TooExpensive, TransientError
from strandline.services.processes import limited_work
from strandline.services.processes.limited_work import LimitedWork
from tests.support.waiting import wait_until

MIB = 1 << 20
LIMIT_BYTES = 256 * MIB


@pytest.fixture
def work() -> Iterator[LimitedWork]:
    made = LimitedWork([__name__], LIMIT_BYTES, 60.0)
    yield made
    made.close()


def allocate(mebibytes: int) -> int:
    return len(bytearray(mebibytes * MIB))


def allocate_in_arrow() -> int:
    return len(pa.repeat("a" * MIB, 1_000))


def compute_forever() -> None:
    while True:
        pass


def refuse() -> None:
    raise InvalidDocument([Problem("no name", "stream", "a.yaml", 3)])


def state() -> tuple[int, dict[str, str], int]:
    """The process, its environment, and its open sockets."""
    own = psutil.Process()
    return own.pid, dict(os.environ), len(own.net_connections("inet"))


def exit_at_once() -> None:
    os._exit(3)


def large_result() -> bytes:
    return bytes(limited_work.RESPONSE_BYTES_MAX)


@pytest.mark.guarantee(
    "G776",
    "A request to check, plan, or preview documents uses limited memory and time, in a process without secrets and "
    "connections. A request beyond a limit is refused, and the control service continues.",
    promise="no-client-can-exhaust-a-service",
)
def test_a_call_that_needs_too_much_memory_is_ended_and_the_next_one_runs(work: LimitedWork) -> None:
    for function, arguments in ((allocate, (1_000,)), (allocate_in_arrow, ()), (exit_at_once, ())):
        with pytest.raises(
            TooExpensive, match=r"the check needed more than 256 MiB .* raise STRANDLINE_CHECK_BYTES_MAX"
        ):
            work.run("check", function, *arguments)  # type: ignore[arg-type]
    assert work.run("check", allocate, 16) == 16 * MIB


@pytest.mark.guarantee("G776")
def test_a_call_that_takes_too_long_is_ended() -> None:
    with closing(LimitedWork([__name__], LIMIT_BYTES, 1.0)) as work:
        with pytest.raises(TooExpensive, match=r"took longer than 1 s .* raise STRANDLINE_CHECK_S"):
            work.run("check", compute_forever)
        assert work._child is not None
        child = psutil.Process(work._child.pid)
        # A process closes its connection before it is gone.
        wait_until(child.children, lambda running: not running, "ended: the process of the call")


def test_the_child_can_start_before_the_first_call(work: LimitedWork) -> None:
    work.start()
    assert work._child is not None
    child = work._child.pid
    assert work.run("check", allocate, 1) == MIB
    assert work._child.pid == child


@pytest.mark.guarantee("G776")
def test_a_result_has_a_limit(work: LimitedWork) -> None:
    with pytest.raises(TooExpensive, match="the result has more than 64 MiB"):
        work.run("check", large_result)


def test_errors_of_the_function_are_raised_here(work: LimitedWork) -> None:
    with pytest.raises(InvalidDocument) as error:
        work.run("check", refuse)
    assert error.value.problems == [Problem("no name", "stream", "a.yaml", 3)]


@pytest.mark.guarantee("G776")
def test_a_call_has_no_secret_and_no_connection_of_the_service(
    work: LimitedWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_LEDGER_PASSWORD", "canary")
    monkeypatch.setenv("STRANDLINE_ALLOW_FUNCTIONS", "package.module")
    pid, environment, sockets = work.run("check", state, environment={"STRANDLINE_SCHEMA_REGISTRY_URL": "http://r"})
    assert pid != os.getpid()
    assert "canary" not in environment.values()
    assert environment["STRANDLINE_ALLOW_FUNCTIONS"] == "package.module"
    assert environment["STRANDLINE_SCHEMA_REGISTRY_URL"] == "http://r"
    assert sockets == 0
    assert "STRANDLINE_SCHEMA_REGISTRY_URL" not in work.run("check", state)[1], "each call has a process of its own"


def test_few_calls_of_a_kind_run_at_the_same_time(work: LimitedWork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_work, "_WAIT_S", 0.05)
    with work._turn("preview"), work._turn("preview"):
        with pytest.raises(TransientError, match="2 other requests of this kind"):
            work.run("preview", allocate, 1)
        assert work.run("check", allocate, 1) == MIB, "other kinds have their own share"
    assert work.run("preview", allocate, 1) == MIB


def test_a_child_that_was_killed_is_replaced_and_all_threads_may_call(work: LimitedWork) -> None:
    work.run("check", allocate, 1)
    assert work._child is not None
    work._child.kill()
    work._child.wait()
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(work.run("check", allocate, 2))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2 * MIB] * 4
