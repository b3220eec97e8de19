"""Proposes the document of a stream of frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acme_frames.frame import MAGIC, SIZE
from strandline.processing.formats.inference.sample import Proposal, Proposed

_YEAR_2200_MS = 7_258_118_400_000


def propose_frames(name: str, records: Sequence[bytes]) -> Proposed | None:
    """Return a document for frames. None if most of the records aren't frames."""
    frames = [one for one in records if len(one) == SIZE and one.startswith(MAGIC)]
    if not frames or 2 * len(frames) < len(records):
        return None
    document: dict[str, Any] = {"stream": name, "format": "acme_frames"}
    if int.from_bytes(frames[0][10:18], "little", signed=True) > _YEAR_2200_MS:
        document["format_options"] = {"byte_order": "big"}
    document["schema"] = {"device": "string", "time": "timestamp", "value": "double?"}
    return Proposal(document), list(records)
