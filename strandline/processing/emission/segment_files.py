"""Segments of a bucket's state (sorted, immutable parts of it) as files in Spark's checkpoint directory. So they exist as long as
the directory, snapshots contain them, and every executor sees them.

A file never changes. Its name is the checksum of its bytes, which is compared when a process first reads the file. If a file is
cut off or a bit has changed, the run ends and the job rewinds. A file that is written again replaces the existing file.
"""

from __future__ import annotations

import mmap
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from strandline.core.errors import StrandlineError
from strandline.processing.operators.segments import SegmentStore, name_of

_SEGMENTS = "segments"
_OPENED_MAX = 1_024
_LOOK_EVERY_S = 10.0
"""Minimum time in seconds between two looks for directories that no longer exist."""
_looked_s = 0.0
_opened: OrderedDict[Path, dict[str, memoryview]] = OrderedDict()
"""Mapped segments of this process, by directory: a worker sees the same segments with every slice. The last one was used last."""


class SegmentFiles(SegmentStore):
    """The directory with the segments of one `dedupe` or one window stage in one bucket."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @staticmethod
    def of(checkpoint: Path, bucket: int, number: int) -> SegmentFiles:
        """Return the segments below Spark's checkpoint directory. `number`: of the `dedupe` or stage; see `Cascade.step`."""
        return SegmentFiles(checkpoint / _SEGMENTS / str(bucket) / str(number))

    def add(self, segment: bytes) -> str:
        name = name_of(segment)
        new = self._directory / f"{name}.{uuid4().hex}.tmp"  # snapshots take no such file
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            new.write_bytes(segment)
            new.replace(self._directory / name)
        except OSError as error:
            raise StrandlineError(
                f"A part of the state could not be written to {self._directory}: {error}. Free disk space there."
            ) from error
        return name

    def read(self, names: Sequence[str]) -> list[memoryview]:
        _forget_removed()
        known = _opened.get(self._directory, {})
        _opened[self._directory] = found = {name: known.get(name) or self._mapped(name) for name in names}
        _opened.move_to_end(self._directory)
        if len(_opened) > _OPENED_MAX:
            _opened.popitem(last=False)
        return list(found.values())

    def remove(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)

    def _mapped(self, name: str) -> memoryview:
        try:
            with (self._directory / name).open("rb") as file:
                found = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise StrandlineError(
                f"A part of the state can't be read from {self._directory}: {error}. The job rewinds."
            ) from error
        if name_of(found) != name:
            raise StrandlineError(
                f"A part of the state is not as it was written: {self._directory / name}. The job rewinds."
            )
        return found


def _forget_removed() -> None:
    """Unmap the segments of directories that no longer exist, because their disk space is free only then."""
    global _looked_s
    if time.monotonic() - _looked_s < _LOOK_EVERY_S:
        return
    _looked_s = time.monotonic()
    for directory in [one for one in _opened if not one.exists()]:
        del _opened[directory]
