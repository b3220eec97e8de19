"""An open window becomes a document like its result, with its own id, in its own index."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import pyarrow as pa

from strandline.results.document import DocumentShape, WindowHead, digest_of
from strandline.results.names import open_index

OPEN_WINDOWS_MAX = 10_000
"""Maximum number of windows of one stage and bucket that are shown: those that end first."""


@dataclass(frozen=True)
class OpenShape(DocumentShape):
    """The documents of one emission's open windows.

    The id is the hash of the result's parts with `open` before the window's times, without the end if it moves. So a
    window has one document, whichever run shows it and however it fills.
    """

    ends_move: bool = field(default=False, kw_only=True)
    """True if a window's end depends on its last record."""

    @staticmethod
    def of(shape: DocumentShape, *, ends_move: bool) -> OpenShape:
        """Return the shape for the open windows of the emission with this shape."""
        return OpenShape(**{one.name: getattr(shape, one.name) for one in fields(shape)}, ends_move=ends_move)

    @property
    def is_open(self) -> bool:
        return True

    def _of_run(self, ids: pa.StringArray, epoch: int) -> pa.StringArray:
        return ids

    def _origin(self, epoch: int, emission: int, slice_digest: str) -> dict[str, str | int]:
        return {**super()._origin(epoch, emission, slice_digest), "open": True}

    def _window_head(self, start_ms: int, end_ms: int) -> WindowHead:
        times = (start_ms,) if self.ends_move else (start_ms, end_ms)
        digest = digest_of((self.job, self.stage, "open", *times, len(self._key)))
        return replace(super()._window_head(start_ms, end_ms), digest=digest, index=open_index(self.emit_name))
