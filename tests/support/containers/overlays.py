"""Directories that lie upon each other, with one on top that takes what is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.containers.machine import Machine


def mount(machine: Machine, layers: tuple[Path, ...], changes: Path, root: Path) -> None:
    """Show the layers at `root`, for the processes of the machine; what these write there goes to `changes`."""
    work = changes.with_name(f"{changes.name}.work")
    for directory in (changes, work, root):
        directory.mkdir(parents=True, exist_ok=True)
    lower = ":".join(str(layer) for layer in reversed(layers))
    options = f"lowerdir={lower},upperdir={changes},workdir={work}"
    machine.run("mount", "-t", "overlay", "overlay", "-o", options, root)


@contextmanager
def mounted(machine: Machine, layers: tuple[Path, ...], changes: Path, root: Path) -> Iterator[Path]:
    mount(machine, layers, changes, root)
    try:
        yield root
    finally:
        machine.run("umount", root)
