"""Parts that installed packages add to Strandline by their entry points.

A package names each of its parts in an entry point, for example of the group `strandline.aggregates`. Installing such a package
permits its use: every client that can apply a pipeline can use its parts by their names, but nothing else of the package. A
part is imported when it is first used. Source of the format: https://packaging.python.org/specifications/entry-points/.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from types import ModuleType
from typing import TypeVar

import structlog

from strandline.core.errors import FunctionUnusable

log = structlog.get_logger()
T = TypeVar("T")
Imported = TypeVar("Imported")


@dataclass(frozen=True)
class PackagePart:
    """A part that a package adds."""

    sort: str
    """Sort of the part, for messages: for example `aggregate function`."""
    name: str
    package: str
    """Package that contains the part, with the release: for example `acme-quality 1.2.0`."""
    entry_point: metadata.EntryPoint
    other_packages: tuple[str, ...] = ()
    """Other packages that add a part of the same name."""

    def load(self, expected: type[T]) -> T:
        """Import the part. Raises FunctionUnusable if that fails, if the part isn't of the expected class, or if two packages
        have it."""
        if self.other_packages:
            raise FunctionUnusable(
                f"the {self.sort} {self.name} is in {self.package} and in {', '.join(self.other_packages)}; "
                "uninstall all except one of them"
            )
        part = self._imported(self.entry_point.load)
        if not isinstance(part, expected):
            raise FunctionUnusable(
                f"the {self.sort} {self.name} of {self.package} is a {type(part).__name__}, not a {expected.__name__}; install a "
                "release of the package for this release of Strandline"
            )
        return part

    def load_module(self, name: str) -> ModuleType:
        """Import a module of the part, which is a folder. Raises FunctionUnusable as `load`."""
        folder = self.load(ModuleType)
        return self._imported(lambda: importlib.import_module(f"{folder.__name__}.{name}"))

    def _imported(self, load: Callable[[], Imported]) -> Imported:
        try:
            return load()
        except Exception as error:  # a foreign module can raise any error when it is imported
            raise FunctionUnusable(
                f"the {self.sort} {self.name} of {self.package} can't be imported: {type(error).__name__}: {error}; reinstall "
                "the package, or install another release of it"
            ) from error


@cache
def parts_of_packages(group: str, sort: str, built_in: frozenset[str]) -> Mapping[str, PackagePart]:
    """Return name -> part of all installed packages. The list is read once in a process.

    So a package that is installed later is known only after the next start.
    Args: built_in: Names of Strandline's own parts, which can't be replaced.
    """
    parts: dict[str, PackagePart] = {}
    for package, entry_point in sorted((_package_of(one), one) for one in metadata.entry_points(group=group)):
        name, known = entry_point.name, parts.get(entry_point.name)
        if name in built_in:
            log.warning(
                "part_of_package_left_out", sort=sort, name=name, package=package, reason="the name is built in"
            )
        elif known is not None:
            others = (*known.other_packages, package)
            parts[name] = PackagePart(sort, name, known.package, known.entry_point, others)
        else:
            parts[name] = PackagePart(sort, name, package, entry_point)
    return parts


def _package_of(entry_point: metadata.EntryPoint) -> str:
    return "" if entry_point.dist is None else f"{entry_point.dist.name} {entry_point.dist.version}"
