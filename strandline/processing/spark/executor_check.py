"""Check of an executor's machine before its first task: it must have the driver's releases, logins and directories.

It runs where another release may be installed, before anything that the driver sent is read. Imports nothing of Strandline but
its version and errors.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

from strandline import __version__
from strandline.core.errors import InvalidSettings

VARIABLE = "STRANDLINE_EXECUTOR_EXPECTED"
"""The environment variable that tells an executor's Python processes what the driver expects. No operator sets it."""
MARK = ".strandline-shared"
"""The file by which an executor knows a directory as the driver's."""


@dataclass(frozen=True)
class Expected:
    """Requirements of the driver for an executor's machine."""

    versions: dict[str, str]
    """Program -> release."""
    marks: dict[str, str]
    """Shared directory -> the content of its MARK."""
    logins: dict[str, str] = field(default_factory=dict)
    """Server -> kind of the driver's login there and its user, without the secret. Without servers that need no login."""

    def text(self) -> str:
        """Return the value for VARIABLE."""
        return json.dumps(asdict(self))


def versions_here() -> dict[str, str]:
    """Return program -> release on this machine, for the programs whose releases must be equal on all machines: those of the
    job's driver. For Python, the first two numbers count."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Strandline": __version__, "Python": python, "PySpark": version("pyspark"), "PyArrow": version("pyarrow")}


def logins_here() -> dict[str, str]:
    """Return this machine's logins at servers, without secrets. Executors need each login that the driver has."""
    from strandline.core.settings import Settings  # only once the releases are known to be the same

    settings = Settings.read()
    found = {}
    if settings.kafka_security_protocol != "PLAINTEXT":
        found["Kafka"] = (
            f"{settings.kafka_security_protocol}, {settings.kafka_sasl_mechanism}, {settings.kafka_username}"
        )
    kinds = {
        "an API key": settings.elasticsearch_api_key,
        "a password": settings.elasticsearch_password,
        "a certificate": settings.elasticsearch_certificate_file,
    }
    if ways := [kind for kind, value in kinds.items() if value is not None]:
        found["Elasticsearch"] = ", ".join(ways)
    return found


def require_expected() -> None:
    """Raise InvalidSettings unless this machine has the releases, logins, and shared directories that the job's driver expects.
    The driver sends them in VARIABLE. Do nothing if it isn't set, because the driver is on this machine."""
    text = os.environ.get(VARIABLE)
    if text is None:
        return
    expected = Expected(**json.loads(text))
    host = socket.gethostname()
    here = versions_here()
    different = [
        f"{name} {here.get(name, 'none')} instead of {wanted}"
        for name, wanted in expected.versions.items()
        if here.get(name) != wanted
    ]
    if different:
        raise InvalidSettings(
            f"The executor on {host} has {', '.join(different)} in {sys.prefix}: install the releases of the job's driver there."
        )
    own = logins_here()
    for server, login in expected.logins.items():
        if own.get(server) != login:
            raise InvalidSettings(
                f"The executor on {host} logs in at {server} with {own.get(server, 'nothing')}, the job's driver with {login}: "
                f"put the settings STRANDLINE_{server.upper()}_* into the environment of the Spark worker there."
            )
    for directory, mark in expected.marks.items():
        if not _is_shared(Path(directory), mark):
            raise InvalidSettings(
                f"The executor on {host} can't use the driver's directory {directory}: it must be one directory that all "
                "machines of the cluster share. The user of the executors must be able to write to it."
            )


def _is_shared(directory: Path, mark: str) -> bool:
    try:
        return (directory / MARK).read_text(encoding="ascii") == mark and os.access(directory, os.W_OK)
    except OSError:
        return False
