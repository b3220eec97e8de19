"""Files that only their owner can read, from their creation."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write the file under a temporary name, and rename it. It has its rights from the beginning. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    new.replace(path)
