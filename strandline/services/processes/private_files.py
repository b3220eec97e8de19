"""Files that only their owner can read, from the first moment on."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write the file whole, beside its place, and move it there, with its rights from the beginning. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    new.replace(path)
