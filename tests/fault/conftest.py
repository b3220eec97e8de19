"""The gateways and brokers that the fault tests break: real processes, shared by the tests of a module."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.ingest_ladder import small_disk
from tests.support.faults.gateways import HTTP, KINDS
from tests.support.faults.lab import Lab


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def each_lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A gateway of each kind over one broker, with the frame-aware proxy between them."""
    with contextlib.closing(Lab(tmp_path_factory.mktemp("lab"), request.param)) as lab:
        yield lab


@pytest.fixture(scope="module")
def module_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with contextlib.closing(Lab(tmp_path_factory.mktemp("lab"), HTTP)) as lab:
        yield lab


@pytest.fixture
def lab(module_lab: Lab) -> Iterator[Lab]:
    """An HTTP gateway: for what lies behind the gateways, which is the same for all. No test leaves its rules to the next."""
    yield module_lab
    module_lab.cluster.proxy.clear()
    module_lab.cluster.proxy.heal()


@pytest.fixture(scope="module")
def module_spool_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with contextlib.closing(Lab(tmp_path_factory.mktemp("lab"), HTTP, durability="spool")) as lab:
        yield lab


@pytest.fixture
def spool_lab(module_spool_lab: Lab) -> Iterator[Lab]:
    """An HTTP gateway that may acknowledge from its spool."""
    yield module_spool_lab
    module_spool_lab.cluster.proxy.clear()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    with contextlib.ExitStack() as stack:
        try:
            mounted = stack.enter_context(small_disk(tmp_path))
        except PermissionError as error:
            pytest.skip(str(error))
        yield mounted
