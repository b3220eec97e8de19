"""The blocks of a page in one language, in their order."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def blocks_of(page: str, language: str) -> list[str]:
    """The blocks of the page below docs/ that are in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
