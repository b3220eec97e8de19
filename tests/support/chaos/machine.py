"""Faults of a machine for the processes on it: one of its disks is full. For its clocks see `clocks.py`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

DISK_BYTES = 256 * 1024 * 1024


class SmallDisk:
    """A file system of its own, in memory, that can be filled. `close` takes it away."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError where none can be mounted; only root may."""
        self.directory = directory
        directory.mkdir()
        mount = shutil.which("mount")
        if mount is None:
            raise OSError("there is no mount program")
        options = f"size={DISK_BYTES},mode=0777"
        done = subprocess.run(
            [mount, "-t", "tmpfs", "-o", options, "none", directory], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise OSError(done.stderr.strip())
        self._filler = directory / "filler"

    def fill(self) -> None:
        """Leave no space at all to others."""
        with self._filler.open("ab", buffering=0) as filler:
            for size in (1 << 20, 4096):
                try:
                    while True:
                        filler.write(bytes(size))
                except OSError:
                    continue  # it is full; a smaller piece fits into the remaining space

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        subprocess.run(["umount", "-l", self.directory], check=True)


def copy_files(source: Path, into: Path) -> None:
    """Replace `into` by a copy of a directory, with the same owners. No process may write there in the meantime."""
    shutil.rmtree(into, ignore_errors=True)
    subprocess.run(["cp", "-a", source, into], check=True)
