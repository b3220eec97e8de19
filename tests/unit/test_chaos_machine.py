"""A disk that is filled is that for the processes that see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.chaos.machine import SmallDisk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        disk = SmallDisk(tmp_path / "disk")
    except OSError as error:
        pytest.skip(f"NO FILE SYSTEM CAN BE MOUNTED, so a full disk was NOT tested: {error}")
    with closing(disk):
        yield disk


def test_a_full_disk_takes_nothing_until_it_is_freed(disk: SmallDisk):
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        (disk.directory / "a").write_bytes(b"a")
    disk.free()
    (disk.directory / "a").write_bytes(b"a")
    assert (disk.directory / "a").read_bytes() == b"a"
