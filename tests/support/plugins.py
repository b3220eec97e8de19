"""Toy packages of `tests/plugins`, as pip would install them.

Each folder there is a root for `sys.path`: a package with its metadata and entry points. A toy is defined completely outside of
Strandline, so it shows that a further part of its sort needs no change in it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from strandline.core.packages import parts_of_packages
from strandline.core.streams import format_registry
from strandline.processing.pipelines import expressions
from strandline.processing.pipelines.model.package_fields import with_package_fields

PLUGINS = Path(__file__).parents[1] / "plugins"


def install_toys(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Install these toys in this process, and in those that it starts, until `forget_toys`."""
    for name in names:
        monkeypatch.syspath_prepend(PLUGINS / name)
    paths = [*(str(PLUGINS / name) for name in names), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    forget_lists()


def forget_lists() -> None:
    """Have packages listed again, as a new process does."""
    parts_of_packages.cache_clear()
    format_registry.forget()
    with_package_fields.cache_clear()
    expressions.parse_expression.cache_clear()
    expressions.aggregate_calls_in.cache_clear()
    expressions._parser_class.cache_clear()
    expressions._stored_parser_class.cache_clear()


def forget_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uninstall all toys from this process."""
    monkeypatch.undo()
    forget_lists()
    for module in [name for name in sys.modules if name.startswith("acme_")]:
        del sys.modules[module]
