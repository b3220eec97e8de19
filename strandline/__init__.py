"""Strandline: exactly-once streaming ETL for sensor data.

Every result is a pure function of the log. The packages, in the order in which they may import each other:
`core` <- `ledger` <- `log` <- `ingest`, `results` <- `processing` <- `services` <- `example` <- `services.cli`.
"""

from importlib import import_module

__version__ = "0.1.0"

# Names that users import. A module is loaded at the first use of its name: `import strandline` loads nothing.
# The types of these names are in `__init__.pyi`.
_PUBLIC = {
    "Client": "strandline.frontends.client.client",
    "DeskRun": "strandline.frontends.python.pipeline",
    "Pipeline": "strandline.frontends.python.pipeline",
    "Stream": "strandline.frontends.python.flow",
    "counted": "strandline.frontends.python.windows",
    "cumulative": "strandline.frontends.python.windows",
    "lookup": "strandline.frontends.python.flow",
    "previous": "strandline.frontends.python.windows",
    "session": "strandline.frontends.python.windows",
    "sliding": "strandline.frontends.python.windows",
    "stream": "strandline.frontends.python.flow",
    "tumbling": "strandline.frontends.python.windows",
}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'strandline' has no attribute '{name}'")
    found: object = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
