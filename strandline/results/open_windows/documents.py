"""What a window that is open becomes: a document like its result, under an id of its own, in an index of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import pyarrow as pa

from strandline.results.document import DocumentShape, WindowHead, digest_of
from strandline.results.names import open_index

OPEN_WINDOWS_MAX = 10_000
"""So many of one stage and bucket are shown at most: those that end first."""


@dataclass(frozen=True)
class OpenShape(DocumentShape):
    """The documents of one emission's open windows. An id is the hash of the result's parts with `open` before the window's
    times, and its end is left out where it moves. So a window has one document, whatever run shows it and however it fills."""

    ends_move: bool = field(default=False, kw_only=True)
    """Whether a window ends where its last record says."""

    @staticmethod
    def of(shape: DocumentShape, *, ends_move: bool) -> OpenShape:
        """Those of the emission with this shape."""
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
