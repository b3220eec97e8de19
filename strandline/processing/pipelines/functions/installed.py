"""Python functions of installed packages, which `map` steps of pipelines call.

Anyone who can apply a pipeline can name a function. So the setting ALLOW_FUNCTIONS lists the functions that can be called, in
each process that would import one. Nothing else is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache
from importlib import metadata
from typing import Any, cast

from strandline.core.errors import FunctionUnusable

_EXAMPLE = "STRANDLINE_ALLOW_FUNCTIONS=package.module"


def installed_function(name: str) -> Callable[..., Any]:
    """Return the function `package.module:function`. Raises FunctionUnusable if it isn't allowed, isn't installed, can't be
    imported, or isn't defined in its module."""
    from strandline.core.settings import Settings  # imports pydantic, which few processes need for it

    module_name, _, attribute = name.partition(":")
    allowed = {part.strip() for part in Settings.read().allow_functions.split(",")}
    if name not in allowed and module_name not in allowed:
        raise FunctionUnusable(
            f"{name} is not allowed here: an operator allows it by {_EXAMPLE} ({module_name}, in the environment of control "
            "services, runners and executors)"
        )
    if not package_of(name):
        raise FunctionUnusable(f"{name} belongs to no installed package; install its package with pip on each machine")
    try:
        function = getattr(importlib.import_module(module_name), attribute, None)
    except Exception as error:  # an external module can raise anything when it is imported
        raise FunctionUnusable(
            f"{module_name} can't be imported: {type(error).__name__}: {first_line(error)}"
        ) from error
    if not callable(function):
        raise FunctionUnusable(f"{module_name} has no function '{attribute}'")
    if name not in allowed and getattr(function, "__module__", None) != module_name:
        raise FunctionUnusable(
            f"{name} is only imported in {module_name}, not defined there; name the module that defines it, or allow {name} "
            "itself"
        )
    return cast("Callable[..., Any]", function)


@lru_cache(maxsize=1_000)
def package_of(name: str) -> str:
    """Return the installed package of a function, with its release, as `acme-quality 1.2.0`. Empty if there is none."""
    top = name.partition(":")[0].partition(".")[0]
    try:
        alike = metadata.distribution(top)
    except metadata.PackageNotFoundError:
        alike = None
    if alike is not None and top in (alike.read_text("top_level.txt") or "").split():
        return f"{alike.name} {alike.version}"
    # The package has another name, or doesn't list its modules: a search of all packages takes a second.
    distributions = metadata.packages_distributions().get(top, [])
    return ", ".join(f"{one} {metadata.version(one)}" for one in sorted(set(distributions)))


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an error, with bounded length."""
    try:
        lines = str(error).splitlines()
    except Exception:  # noqa: BLE001  an external error whose message can't be read
        lines = []
    return lines[0][:300] if lines else ""
