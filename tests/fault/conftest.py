"""The gateways and brokers that the fault tests break: real processes, shared by the tests of a module."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

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
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 160 MB of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160m", "strandline-test", str(disk)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"a full disk needs the right to mount one: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
