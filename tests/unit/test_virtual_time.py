"""The loop with virtual time, in which tests of timeouts run."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from tests.support.virtual_time import run_in_virtual_time
from tests.support.waiting import stretched


def test_time_jumps_to_the_next_timer():
    began_s = time.monotonic()
    run_in_virtual_time(asyncio.sleep(3_600))  # sleeps: in virtual time
    assert time.monotonic() - began_s < stretched(60)


def test_a_call_in_another_thread_takes_no_virtual_time():
    """However long a busy machine takes for it."""

    async def told():
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(asyncio.to_thread(time.sleep, 0.2), 0.001)
        assert loop.time() < 0.001  # sleeps: virtual time

    run_in_virtual_time(told())


def test_a_call_that_waits_for_a_timeout_gets_it(monkeypatch):
    monkeypatch.setattr("tests.support.virtual_time._THREAD_PATIENCE_S", 0.1)
    is_over = threading.Event()

    async def told():
        call = asyncio.ensure_future(asyncio.to_thread(is_over.wait, 60))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(call), 10)
        is_over.set()
        assert await call

    run_in_virtual_time(told())
