"""Checks of `up` before it starts anything: settings, data directory, free space, ports. Each error contains its remedy."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from strandline.core.errors import InvalidSettings, StackError
from strandline.core.settings import make_data_dir
from strandline.ingest.registry import installed_gateways
from strandline.services.embedded.addresses import Ports, StackAddresses
from strandline.services.embedded.passwords import login_settings

FREE_BYTES_MIN = 1024 * 1024 * 1024
"""Elasticsearch allocates no shards below 400 MB. The rest is for records and results."""
MOVE_PORTS = "move all ports of the stack with --port-offset N"
_PORTS = {
    "kafka": {"kafka": "Kafka", "kafka_controller": "Kafka's controller"},
    "elasticsearch": {"elasticsearch": "Elasticsearch", "elasticsearch_transport": "Elasticsearch's transport"},
    "mqtt": {"mqtt": "the MQTT broker"},
    "control": {"control": "the control service"},
}
"""Part of the stack -> its fields of Ports, and the purpose of each."""
_SECURED = {
    "kafka": ("STRANDLINE_KAFKA_",),
    "elasticsearch": ("STRANDLINE_ELASTICSEARCH_",),
    "ledger": ("STRANDLINE_LEDGER_PASSWORD",),
}
"""Part of the stack -> prefixes of settings that its own server doesn't use."""
_TLS = ("control_tls_", "health_tls_")
"""Prefixes of settings with certificates, in addition to those of the gateways."""
_NO_LOGIN = ("STRANDLINE_KAFKA_BOOTSTRAP", "STRANDLINE_ELASTICSEARCH_URL")
"""Settings without a login. An address that isn't the stack's own makes the server an external server."""
_LOOPBACK = ("127.0.0.1", "localhost")


def require_embedded_settings(environment: Mapping[str, str], addresses: StackAddresses) -> None:
    """Raise InvalidSettings if a setting doesn't fit the stack. It must not name another host or broker than those of
    `addresses`. It must not set a login or a certificate of one of the stack's own servers: they have none, or passwords of the
    stack."""
    gateways = installed_gateways().values()
    hosts = ("control_host", *(host for one in gateways for host in one.hosts))
    allowed = {f"STRANDLINE_{host.upper()}": _LOOPBACK for host in hosts}
    allowed |= {"STRANDLINE_MQTT_URL": (addresses.mqtt_url, addresses.mqtt_url.replace(*_LOOPBACK))}
    tls = (*_TLS, *(prefix for one in gateways for prefix in one.tls))
    secured = tuple(one for part, names in _SECURED.items() if part not in addresses.outside for one in names)
    secured += tuple(f"STRANDLINE_{prefix.upper()}" for prefix in tls)
    logins = login_settings(addresses)
    for name, value in environment.items():
        if logins.get(name.upper()) == value:
            continue
        if name.upper().startswith(secured) and name.upper() not in _NO_LOGIN:
            raise InvalidSettings(
                f"{name} is set, but `strandline up` starts its own server for that. The server is on 127.0.0.1 without TLS, and "
                "without a password or with a password of the stack (--passwords). Unset the variable, pass your own server "
                "(docs/deploy.md), or run the gateways and the control service separately (docs/security.md)"
            )
        if name.upper() in allowed and value not in allowed[name.upper()]:
            raise InvalidSettings(
                f"{name} is set, but `strandline up` listens only on 127.0.0.1, and this stack has another "
                "broker; unset it, or run the gateways and the control service separately (docs/compose.md)"
            )


def ports_to_take(ports: Ports, parts: Iterable[str]) -> dict[str, int]:
    """Return purpose of each port of these parts -> port."""
    known, numbers = ports_of_parts(), ports.all()
    return {purpose: numbers[name] for part in parts for name, purpose in known[part].items()}


def ports_of_parts() -> dict[str, dict[str, str]]:
    """Return part of the stack -> names of its ports, and the purpose of each."""
    of_gateways = {
        one.part: {port.setting: port.purpose for port in one.ports} for one in installed_gateways().values()
    }
    return _PORTS | of_gateways


def require_data_dir(data_dir: Path) -> None:
    """Create the data directory. Raises StackError if it can't be written or has too little free space."""
    remedy = "pass another directory with --data-dir"
    try:
        make_data_dir(data_dir)
        with tempfile.TemporaryFile(dir=data_dir):
            pass
    except OSError as error:
        raise StackError(f"can't write to the data directory {data_dir} ({error.strerror}); {remedy}") from error
    require_free_space(data_dir, FREE_BYTES_MIN, "a stack", remedy)


def require_free_space(directory: Path, needed_bytes: int, what: str, remedy: str) -> None:
    """Raise StackError if the disk of the directory has less free space than needed."""
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needed_bytes:
        raise StackError(
            f"only {free_bytes // 2**20} MB are free in {directory}, but {what} needs {needed_bytes // 2**20} MB; "
            f"free some space, or {remedy}"
        )


def require_free_ports(ports: Ports, parts: Iterable[str]) -> None:
    """Raise StackError for the first port of these parts that another program uses."""
    for purpose, port in ports_to_take(ports, parts).items():
        if not is_free(port):
            raise StackError(
                f"port {port} on 127.0.0.1 for {purpose} is used by another program; stop that program, or {MOVE_PORTS}"
            )


def is_free(port: int) -> bool:
    """Return True if a server can listen on this port of loopback now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: lingering connections of an earlier server don't prevent it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
