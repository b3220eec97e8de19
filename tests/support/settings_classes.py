"""Every settings class there is, so that no test of all of them forgets a new one."""

from __future__ import annotations

import importlib
import pkgutil

from pydantic_settings import BaseSettings

import strandline


def all_settings() -> set[type[BaseSettings]]:
    """Every settings class of every module."""
    for module in pkgutil.walk_packages(strandline.__path__, "strandline."):
        # Alembic runs these; importing a `__main__` would run it.
        if not module.name.startswith("strandline.migrations.") and not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
    found, left = set(), [BaseSettings]
    while left:
        left += (kinds := left.pop().__subclasses__())
        found.update(kind for kind in kinds if kind.__module__.startswith("strandline."))
    return found
