"""The slice of one job in a batch of a pool.

A *member* is a job that runs in a pool. One task reads and computes the whole slice of a member.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.log.reader import OffsetRange
from strandline.processing.source.source_config import Piece


@dataclass(frozen=True)
class MemberSlice:
    """The next slice of one member, or several slices that a replay merges. Travels pickled to the executors."""

    job: str
    epoch: int
    """Epoch of the run of the member."""
    config: str
    """Name of the config of the run in the directory of the pool."""
    number: int
    """Number of the last slice."""
    state_before: int | None
    """Number of the slice whose state the task continues. None if the task begins without state."""
    pieces: tuple[Piece, ...]
    is_new: bool
    """True if the slice isn't committed. A replayed slice only rebuilds state."""
    restores: bool
    """True if the slice is committed, and results that its stores lost are emitted again."""
    work: bytes
    """Encoded `SliceWork`."""

    @property
    def ranges(self) -> list[OffsetRange]:
        """Ranges of the log that the task reads, in the order in which it reads them. Only for a new slice: the ranges of a
        replay are merged when they are read."""
        return [piece.offsets for piece in self.pieces] if self.is_new else []
