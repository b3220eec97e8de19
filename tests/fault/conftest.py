"""The gateways and brokers that the fault tests break: real processes, shared by the tests of a module."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.ingest_ladder import small_disk
from tests.support.faults.gateways import KINDS
from tests.support.faults.lab import Lab


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A gateway of each kind over one broker, with the frame-aware proxy between them."""
    with contextlib.closing(Lab(tmp_path_factory.mktemp("lab"), request.param)) as lab:
        yield lab


@pytest.fixture(autouse=True)
def _healed(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves its rules to the next."""
    yield
    if "lab" in request.fixturenames:
        lab: Lab = request.getfixturevalue("lab")
        lab.cluster.proxy.clear()
        lab.cluster.proxy.heal()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    with contextlib.ExitStack() as stack:
        try:
            mounted = stack.enter_context(small_disk(tmp_path))
        except PermissionError as error:
            pytest.skip(str(error))
        yield mounted
