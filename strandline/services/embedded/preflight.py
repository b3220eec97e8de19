"""What `up` checks before it starts anything: settings, data directory, free space, ports. Each error says what to do."""

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
"""Elasticsearch allocates no shards below 400 MB; the rest is for records and results."""
MOVE_PORTS = "move all ports of the stack with --port-offset N"
_PORTS = {
    "kafka": {"kafka": "Kafka", "kafka_controller": "Kafka's controller"},
    "elasticsearch": {"elasticsearch": "Elasticsearch", "elasticsearch_transport": "Elasticsearch's transport"},
    "mqtt": {"mqtt": "the MQTT broker"},
    "control": {"control": "the control service"},
}
"""Part of the stack -> its fields of Ports, and what each is for."""
_SECURED = {
    "kafka": ("STRANDLINE_KAFKA_",),
    "elasticsearch": ("STRANDLINE_ELASTICSEARCH_",),
    "ledger": ("STRANDLINE_LEDGER_PASSWORD",),
}
"""Part of the stack -> the beginnings of the settings that its own kind does without."""
_TLS = ("control_tls_", "pages_tls_")
"""Beginnings of settings with certificates, in addition to those of the gateways."""
_NO_LOGIN = ("STRANDLINE_KAFKA_BOOTSTRAP", "STRANDLINE_ELASTICSEARCH_URL")
"""These name no login, and an address that is not the stack's own makes the server an outside one."""
_LOOPBACK = ("127.0.0.1", "localhost")


def require_embedded_settings(environment: Mapping[str, str], addresses: StackAddresses) -> None:
    """Raises InvalidSettings for a setting that names a host or a broker other than those of `addresses`, and for a login or a
    certificate of one of the stack's own servers: they have none, or passwords of the stack's."""
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
                f"{name} is set, but `strandline up` starts a server of its own for that, on 127.0.0.1 without TLS, and with no "
                "password or one that it makes itself (--passwords); unset it, name a server of yours (docs/deploy.md), or "
                "run the gateways and the control service one by one (docs/security.md)"
            )
        if name.upper() in allowed and value not in allowed[name.upper()]:
            raise InvalidSettings(
                f"{name} is set, but `strandline up` listens on 127.0.0.1 only and this stack has another broker; unset it, "
                "or run the gateways and the control service one by one (docs/compose.md)"
            )


def ports_to_take(ports: Ports, parts: Iterable[str]) -> dict[str, int]:
    """What each port of these parts is for -> the port."""
    known, numbers = ports_of_parts(), ports.all()
    return {purpose: numbers[name] for part in parts for name, purpose in known[part].items()}


def ports_of_parts() -> dict[str, dict[str, str]]:
    """Return part of the stack -> names of its ports, and what each is for."""
    of_gateways = {
        one.part: {port.setting: port.purpose for port in one.ports} for one in installed_gateways().values()
    }
    return _PORTS | of_gateways


def require_data_dir(data_dir: Path) -> None:
    """Make the data directory. Raises StackError when it can't be written or has too little free space."""
    remedy = "choose another with --data-dir"
    try:
        make_data_dir(data_dir)
        with tempfile.TemporaryFile(dir=data_dir):
            pass
    except OSError as error:
        raise StackError(f"the data directory {data_dir} cannot be written ({error.strerror}); {remedy}") from error
    require_free_space(data_dir, FREE_BYTES_MIN, "a stack", remedy)


def require_free_space(directory: Path, needed_bytes: int, what: str, remedy: str) -> None:
    """Raises StackError when the directory's disk has less free space than needed."""
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needed_bytes:
        raise StackError(
            f"only {free_bytes // 2**20} MB are free in {directory} and {what} needs {needed_bytes // 2**20} MB; "
            f"free some space, or {remedy}"
        )


def require_free_ports(ports: Ports, parts: Iterable[str]) -> None:
    """Raises StackError that names the first port of these parts which another program listens on."""
    for purpose, port in ports_to_take(ports, parts).items():
        if not is_free(port):
            raise StackError(
                f"port {port} on 127.0.0.1, meant for {purpose}, is taken by another program; stop that program, or "
                f"{MOVE_PORTS}"
            )


def is_free(port: int) -> bool:
    """Whether a server could listen on the port of loopback now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections of an earlier server that still linger are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
