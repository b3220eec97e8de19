"""Lock on a file that one process at a time holds. The end of the process releases it, however it ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from strandline.core.errors import StackError


@contextmanager
def held_alone(path: Path, refusal: str) -> Iterator[TextIO]:
    """Hold the lock, and yield the file, which can be read and written. Child processes don't inherit the lock.

    Raises StackError with the message `refusal` immediately if another process holds it.
    """
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StackError(refusal) from error
        yield file
