"""The servers of a benchmark: a separate stack on free ports."""

from __future__ import annotations

import random
from pathlib import Path

from rich.console import Console

from strandline.core.settings import Settings
from strandline.services.embedded.addresses import Ports
from strandline.services.embedded.preflight import is_free
from strandline.services.embedded.stack import Stack


def new_stack(data_dir: Path, console: Console) -> Stack:
    """Return a stack without running processes, on ports that are free now."""
    data_dir.mkdir()
    return Stack(Settings(), data_dir, free_offset(), console)


def free_offset() -> int:
    """Return a number to add to every port of a stack so that all are free now."""
    offsets = list(range(2_000, 23_000, 20))
    random.shuffle(offsets)  # another run can do the same in parallel
    return next(offset for offset in offsets if all(is_free(port) for port in Ports.moved(offset).all().values()))
