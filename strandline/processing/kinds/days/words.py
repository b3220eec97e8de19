"""Words for windows of days: those for all windows of one size."""

from __future__ import annotations

from strandline.processing.kinds.windows.words import WindowWords

WORDS = WindowWords()
