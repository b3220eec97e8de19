"""Optional packages. Each belongs to an extra of Strandline, and only the feature that uses it imports it.

`report_missing_extras` makes the import of a missing package name its extra. `pyproject.toml` lists the packages of each extra.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec

from strandline.core.errors import PermanentError

EXTRAS = {
    "amqtt": "embedded",
    "apprise": "apprise",
    "fastavro": "avro",
    "google.protobuf": "protobuf",
    "psycopg": "postgresql",
}
"""Module -> extra that contains its package."""


class MissingExtra(PermanentError, ModuleNotFoundError):
    """A feature needs a package that isn't installed."""


class _ExtraFinder(MetaPathFinder):
    """Finder that Python calls after all others, so only for modules that aren't installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        extra = EXTRAS.get(fullname)
        if extra is None and fullname == "google":
            extra = EXTRAS["google.protobuf"]
        if extra is not None:
            raise MissingExtra(
                f"the module {fullname} isn't installed; it belongs to the extra '{extra}': pip install 'strandline[{extra}]'",
                name=fullname,
            )


def report_missing_extras() -> None:
    """Make failed imports of optional packages name their extra, in this process. Idempotent."""
    if not any(isinstance(one, _ExtraFinder) for one in sys.meta_path):
        sys.meta_path.append(_ExtraFinder())


def require_module(name: str) -> None:
    """Raise MissingExtra if the module isn't installed. Don't import it."""
    report_missing_extras()
    find_spec(name)
