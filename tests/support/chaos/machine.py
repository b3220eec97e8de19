"""What a machine can be made to do to the processes on it: its wall clock jumps, a disk of it is full."""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from pathlib import Path

_SOURCE = Path(__file__).with_name("wall_clock.c")
DISK_BYTES = 256 * 1024 * 1024


class WallClock:
    """A wall clock of their own for the processes that are started with `environment`; monotonic clocks stay as they are.

    Made by a library of ours that is preloaded: with libfaketime 0.9.10, which Debian 12 has, `time.sleep` of Python fails.
    """

    def __init__(self, directory: Path, name: str = "wall-clock", some: str = "") -> None:
        """`some`: only for those of these processes that have it in their command line, and what they start; added to the clock
        of all. Raises OSError where there is no C compiler, or it can't make the library."""
        compiler = shutil.which("cc")
        if compiler is None:
            raise OSError("there is no C compiler; `apt-get install gcc libc6-dev` brings one")
        library, self._file = directory / "wall-clock.so", directory / name
        if not library.exists():
            command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise OSError(done.stderr.strip())
        self._file.write_bytes(struct.pack("=q", 0))
        self.environment = {"LD_PRELOAD": str(library), "WALL_CLOCK_FILE": str(self._file)}
        if some:
            of_some = {"WALL_CLOCK_FILE_OF_SOME": str(self._file), "WALL_CLOCK_SOME": some}
            self.environment = {"LD_PRELOAD": str(library), **of_some}
        self.steps: list[tuple[int, int, int]] = []
        """When it was not the machine's: from, to, by how much it was ahead, in ms."""
        self._ahead_s, self._since_ms = 0, 0

    def set(self, ahead_s: int) -> None:
        """So many seconds ahead of the machine's clock, or behind it; at once."""
        now_ms = time.time_ns() // 1_000_000
        if self._ahead_s:
            self.steps.append((self._since_ms, now_ms, self._ahead_s * 1_000))
        self._ahead_s, self._since_ms = ahead_s, now_ms
        with self._file.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", ahead_s))


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
                    continue  # it is full; what is left takes a smaller piece

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        subprocess.run(["umount", "-l", self.directory], check=True)
