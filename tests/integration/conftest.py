"""Fixtures of the tests that open the console in a browser. A module can replace each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.console import furnished_console
from tests.support.console_browser import Watched, chromium
from tests.support.control import Api


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser. It ends after the last test that needs it (`tests/support/workers.py`)."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str], Api]]:
    """A console that requires a sign-in."""
    with furnished_console(tmp_path_factory.mktemp("console"), tokens=True) as served:
        yield served


@pytest.fixture
def watched() -> Iterator[Watched]:
    found = Watched()
    yield found
    assert (found.errors, found.elsewhere) == ([], [])
