"""Ports and addresses of an embedded stack, and `DIR/stack.json`, which contains them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

from strandline.core.errors import StackError
from strandline.core.settings import Settings, secret_names
from strandline.core.urls import without_credentials
from strandline.ingest.gateway.contract import StackServers
from strandline.ingest.registry import installed_gateways, stack_ports

STACK_FILE = "stack.json"
OUTSIDE_FIELDS = {
    "kafka": "kafka_bootstrap",
    "elasticsearch": "elasticsearch_url",
    "mqtt": "mqtt_url",
    "ledger": "ledger_url",
}
"""Servers that can be external: name -> field of StackAddresses, and setting."""

STACK_USER = "strandline"
"""User name of every process for logins to the stack's own servers."""
LOGIN_FIELDS: Mapping[str, Mapping[str, str]] = {
    "kafka": {
        "kafka_security_protocol": "SASL_PLAINTEXT",
        "kafka_sasl_mechanism": "PLAIN",
        "kafka_username": STACK_USER,
    },
    "elasticsearch": {"elasticsearch_username": STACK_USER},
    "mqtt": {"mqtt_username": STACK_USER},
}
"""Own servers of the stack that can require a password -> settings of a login, without the password."""
SERVER_NAMES = {"kafka": "Kafka", "elasticsearch": "Elasticsearch", "mqtt": "the MQTT broker"}

Outside = Mapping[str, str]
"""External servers of a stack: name -> address."""
NOTHING_OUTSIDE: Outside = {}


@dataclass(frozen=True)
class Ports:
    """TCP ports of one stack, all on loopback."""

    kafka: int = 9092
    kafka_controller: int = 9093
    elasticsearch: int = 9200
    elasticsearch_transport: int = 9300
    mqtt: int = 1883
    control: int = 8080
    gateways: Mapping[str, int] = dataclass_field(
        default_factory=lambda: {name: one.default for name, one in stack_ports().items()}
    )
    """Setting of a gateway -> port."""

    @classmethod
    def moved(cls, offset: int) -> Ports:
        """Return every port moved by `offset`.

        Raises StackError if a port leaves the range for ordinary users, or if the gateway of a package has the port of another
        part.
        """
        unmoved = cls().all()
        owners: dict[int, str] = {}
        for name, port in unmoved.items():
            if (owner := owners.setdefault(port, name)) != name:
                raise StackError(
                    f"{owner} and {name} have the same port {port}; install another release of the package with this gateway, or "
                    "uninstall it"
                )
        lowest, highest = 1024 - min(unmoved.values()), 65535 - max(unmoved.values())
        for name, port in unmoved.items():
            if not 1024 <= port + offset <= 65535:
                raise StackError(
                    f"with --port-offset {offset}, the port of {name} would be {port + offset}; choose an offset that keeps "
                    f"every port between 1024 and 65535 (from {lowest} to {highest})"
                )
        moved = {name: port + offset for name, port in unmoved.items()}
        of_gateways = {name: moved.pop(name) for name in cls().gateways}
        return cls(**moved, gateways=of_gateways)

    def all(self) -> dict[str, int]:
        """Return name -> port, of servers and gateways."""
        servers = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "gateways"}
        return {**servers, **self.gateways}


@dataclass(frozen=True)
class StackAddresses:
    """Content of `DIR/stack.json`, with which the command line finds the stack of a data directory."""

    data_dir: str
    port_offset: int
    api_url: str
    ingest_url: str
    kafka_bootstrap: str
    elasticsearch_url: str
    mqtt_url: str
    mqtt_listener_url: str
    ledger_url: str
    outside: tuple[str, ...]
    """Names of the external servers."""
    passwords: bool
    """True if its own Kafka, Elasticsearch, and MQTT broker require a password of the stack. See `secured`."""
    auth: str
    """Authentication of its API and gateways: the setting `auth` of its processes."""

    @classmethod
    def of(
        cls,
        data_dir: Path,
        port_offset: int,
        outside: Outside = NOTHING_OUTSIDE,
        *,
        passwords: bool = False,
        auth: str = "none",
    ) -> StackAddresses:
        """Return the addresses of a stack in `data_dir`. Raises StackError if the offset moves a port out of range."""
        ports = Ports.moved(port_offset)
        own = cls(
            data_dir=str(data_dir),
            port_offset=port_offset,
            api_url=f"http://127.0.0.1:{ports.control}",
            ingest_url=f"http://127.0.0.1:{ports.gateways['http_port']}",
            kafka_bootstrap=f"127.0.0.1:{ports.kafka}",
            elasticsearch_url=f"http://127.0.0.1:{ports.elasticsearch}",
            mqtt_url=f"mqtt://127.0.0.1:{ports.mqtt}",
            mqtt_listener_url=f"mqtt://127.0.0.1:{ports.gateways['mqtt_listener_port']}",
            ledger_url=f"sqlite:///{data_dir / 'ledger.sqlite'}",
            outside=tuple(sorted(outside)),
            passwords=passwords,
            auth=auth,
        )
        given: dict[str, Any] = {OUTSIDE_FIELDS[name]: address for name, address in outside.items()}
        return replace(own, **given)

    def outside_servers(self) -> Outside:
        """Return the external servers."""
        return {name: str(getattr(self, OUTSIDE_FIELDS[name])) for name in self.outside}

    def servers(self) -> StackServers:
        """Return the servers that gateways can use."""
        return StackServers(self.mqtt_url, has_own_broker="mqtt" not in self.outside)

    def secured(self) -> tuple[str, ...]:
        """Return the names of its own servers that require a password of the stack. The MQTT broker also requires one if API
        and gateways require logins, because the bridge appends its messages without another check."""
        asks = {"kafka": self.passwords, "elasticsearch": self.passwords, "mqtt": self.passwords or self.auth != "none"}
        return tuple(name for name in LOGIN_FIELDS if asks[name] and name not in self.outside)

    def differences(self, running: StackAddresses) -> list[str]:
        """Return the differences between the options of the running stack and these options."""
        found = []
        if running.port_offset != self.port_offset:
            found.append(f"it runs with --port-offset {running.port_offset}, but {self.port_offset} is requested")
        for name, field in OUTSIDE_FIELDS.items():
            is_own = name not in running.outside and name not in self.outside
            there, requested = (
                f"your {name} at {getattr(one, field)}" if name in one.outside else f"its own {name}"
                for one in (running, self)
            )
            if not is_own and there != requested:
                found.append(f"it runs with {there}, but {requested} is requested")
        could_ask = {name for name in LOGIN_FIELDS if name not in self.outside}
        if running.passwords != self.passwords and could_ask:
            there, requested = ("--passwords" if one.passwords else "--no-passwords" for one in (running, self))
            found.append(f"it runs with {there}, but {requested} is requested")
        if running.auth != self.auth:
            found.append(f"it runs with STRANDLINE_AUTH={running.auth}, but {self.auth} is requested")
        return found

    def write(self) -> None:
        """Replace `stack.json` atomically."""
        path = Path(self.data_dir) / STACK_FILE
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        new.replace(path)


def read_stack(data_dir: Path) -> StackAddresses:
    """Return the addresses of the stack that was last started in `data_dir`, whether it runs or not.

    Raises StackError if no stack was ever started there.
    """
    path = data_dir.absolute() / STACK_FILE
    try:
        found = StackAddresses(**json.loads(path.read_text(encoding="utf-8")))
        if not OUTSIDE_FIELDS.keys() >= set(found.outside):
            raise ValueError(f"it names servers that are unknown to this release: {found.outside}")
        if not isinstance(found.passwords, bool):
            raise ValueError(f"passwords is {found.passwords!r}")
        if not isinstance(found.auth, str):
            raise ValueError(f"auth is {found.auth!r}")
        return replace(found, outside=tuple(found.outside))
    except FileNotFoundError as error:
        raise StackError(
            f"no stack was ever started in {data_dir}; to start one, run strandline up --data-dir {data_dir}"
        ) from error
    except (OSError, ValueError, TypeError) as error:
        raise StackError(f"can't use {path} ({error}); start the stack again to rewrite it") from error


def stack_settings(settings: Settings, addresses: StackAddresses) -> Settings:
    """Return the settings of every process of the stack: the user's, except the addresses of the stack's own servers."""
    ports = Ports.moved(addresses.port_offset)
    logins: dict[str, Any] = {
        name: value
        for server in addresses.secured()
        for name, value in LOGIN_FIELDS[server].items()
        if name in type(settings).model_fields  # the login at the broker is only a setting of the MQTT bridge
    }
    return settings.model_copy(
        update={
            **logins,
            "data_dir": Path(addresses.data_dir),
            "kafka_bootstrap": addresses.kafka_bootstrap,
            "stream_replication": settings.stream_replication if "kafka" in addresses.outside else 1,
            "elasticsearch_url": addresses.elasticsearch_url,
            "ledger_url": addresses.ledger_url,
            "control_host": "127.0.0.1",
            "control_port": ports.control,
            "ingest_url": addresses.ingest_url,
            "sender_urls": _sender_urls(addresses, ports),
            "http_host": "127.0.0.1",
            "http_port": ports.gateways["http_port"],
        }
    )


def _sender_urls(addresses: StackAddresses, ports: Ports) -> dict[str, str]:
    found = {
        name: gateway.sender_url(addresses.servers(), ports.gateways) for name, gateway in installed_gateways().items()
    }
    return {name: without_credentials(url) for name, url in found.items() if url is not None}


def settings_environment(settings: Settings) -> dict[str, str]:
    """Return this process's environment with `settings` as `STRANDLINE_*`, for a child process that reads them back."""
    hidden = set(secret_names(type(settings))) - {
        "elasticsearch_url",
        "ledger_url",
    }  # child processes inherit these unchanged
    values = {
        f"STRANDLINE_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in settings.model_dump(mode="json", exclude_none=True, exclude=hidden).items()
    }
    # Settings are case-insensitive, so a lower-case variable of the user must not override the stack's address.
    # Also, no variable for a file may compete with a value.
    taken = {*values, *(f"{name}_FILE" for name in values)}
    return {name: value for name, value in os.environ.items() if name.upper() not in taken} | values
