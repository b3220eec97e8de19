"""Words for windows of shifts: those for all windows."""

from __future__ import annotations

from strandline.processing.kinds.windows.words import WindowWords

WORDS = WindowWords()
