"""The contract of a gateway with supervision, ports, the doctor, rights, and the checks of documents.

Each gateway has a folder in `strandline/ingest` with a module that contains an instance of `Gateway`, and
`page.md`, the page of the docs. The table of these modules is in `ingest/registry.py`. A package provides an instance as
an entry point of the group `strandline.gateways`. No code outside of the folder of a gateway tests which gateway it has.

`strandline up` and `strandline down` import this module and the modules with the instances. Therefore they import
settings, models of documents, and clients inside the methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from strandline.access.rights import RequiredRight

if TYPE_CHECKING:
    from strandline.core.document_model import DocumentModel
    from strandline.core.settings import Settings
    from strandline.core.streams.stream import StreamSpec


@dataclass(frozen=True)
class GatewayPort:
    """A port on which a gateway listens, independent of the streams."""

    setting: str
    """Field of the settings that contains the port, for example `udp_health_port`."""
    default: int
    """Default of that field. `strandline up --port-offset` moves it."""
    purpose: str
    """Completes "port 8085, meant for ...", for example `the UDP gateway's health pages`."""


@dataclass(frozen=True)
class StackServers:
    """The servers of an embedded stack that a gateway may use."""

    mqtt_url: str
    """Address of the MQTT broker."""
    has_own_broker: bool
    """True if the stack starts the broker."""


class GatewayFinding(NamedTuple):
    """Finding of `strandline doctor` about a gateway."""

    message: str
    remedy: str = ""
    """Empty if all is well."""


class SenderExample(NamedTuple):
    """Parts of a command that sends a record."""

    record: str
    content_type: str
    """Content type of the record at the HTTP gateway."""
    needs_token: bool
    """True if gateways authenticate senders."""
    port_offset: int
    """Number that is added to ports in documents of streams."""


def stream_address(url: str, port: int, example: SenderExample) -> tuple[str, str, int]:
    """Return address, host, and port of a gateway that has a port for each stream.

    Args: url: URL of the gateway without a port, as `udp://10.0.0.5`. port: Port in the document of the stream.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", port + example.port_offset
    return f"{parts.scheme}://{host}:{port}", host, port


class WayToSend(NamedTuple):
    """Address and command with which a device sends records of a stream to a gateway."""

    address: str
    """Where to, as `http://10.0.0.5:8081/v1/streams/readings/records`."""
    topics: tuple[str, ...] = ()
    """MQTT topic filters. Empty for other protocols."""
    command: str = ""
    """Complete command line that sends one record. Empty if there is none."""
    note: str = ""


class Gateway:
    """One gateway. Without state.

    The process is `python -m MODULE`. It uses `open_resources`, `serve_health_pages`, and `run_gateway` of
    `ingest/gateway/process.py`, and appends by `GatewayResources.appender`. So its metrics, its spool, and its pages have the
    same form as those of all gateways.
    """

    name: ClassVar[str] = ""
    """Name in metrics (`protocol`), in `pids.json` (`gateway-NAME`), and of its directories below the data directory.
    For a gateway of a package, also the name of the entry point and of its section in documents of streams.
    """
    title: ClassVar[str] = ""
    """For messages, for example `the UDP gateway`."""
    module: ClassVar[str] = ""
    """Module of the process."""
    ports: ClassVar[tuple[GatewayPort, ...]] = ()
    """The last one serves the health pages, with readiness and metrics."""
    scheme: ClassVar[str] = ""
    """Scheme of the URL of the first port. Empty if senders connect to ports of the streams, or if none connect."""
    hosts: ClassVar[tuple[str, ...]] = ()
    """Fields of the settings with the addresses to which senders connect. In an embedded stack this is loopback."""
    tls: ClassVar[tuple[str, ...]] = ()
    """Prefixes of the fields of the settings with certificates, for example `tcp_tls_`. An embedded stack has none."""
    stop_timeout_s: ClassVar[float] = 20.0
    """Time in seconds that the process has to stop, before it is killed."""
    actions: ClassVar[Mapping[str, RequiredRight]] = {}
    """Requests of senders, for example `UDP DATAGRAM` -> right that they need. For requests without an entry, no
    principal is checked: every sender that reaches the port may write."""
    subject: ClassVar[str] = ""
    """Subject of the findings of `examine`."""

    @property
    def part(self) -> str:
        """Name of the process in `pids.json`, and of its log."""
        return f"gateway-{self.name}"

    @property
    def health_port(self) -> GatewayPort:
        """Port of the health pages."""
        return self.ports[-1]

    def settings(self) -> type[Settings]:
        """Return the class of the settings. It contains a field for each port."""
        raise NotImplementedError

    def document(self) -> type[DocumentModel] | None:
        """Return the model of the section in documents of streams (`gateways: {NAME: ...}`). None if there is none.

        Streams with the same `port` in this section are refused. Only for gateways of packages: the sections of Strandline's own
        gateways are fields of `StreamSpec`.
        """
        return None

    def section(self, stream: StreamSpec) -> Any:
        """Return the section of the document as its model. None if the stream doesn't use this gateway."""
        model, data = self.document(), stream.gateways.get(self.name)
        return None if model is None or data is None else model.model_validate(data)

    def problems(self, section: Any, stream: StreamSpec) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Yield contradictions between the section and the rest of the document: path in the section, and message."""
        return iter(())

    def environment(self, servers: StackServers) -> Mapping[str, str]:
        """Return variables for the process in an embedded stack, in addition to ports and hosts."""
        return {}

    def sender_url(self, servers: StackServers, ports: Mapping[str, int]) -> str | None:
        """Return the URL of this gateway in an embedded stack, as `ways_to_send` expects it. None if no sender connects.

        Args: ports: Setting of a gateway -> port.
        """
        return f"{self.scheme}://127.0.0.1:{ports[self.ports[0].setting]}" if self.scheme else None

    def ways_to_send(self, stream: StreamSpec, url: str, example: SenderExample) -> Iterator[WayToSend]:
        """Yield how a device sends records of this stream to the gateway at `url`. Nothing if the gateway accepts none."""
        return iter(())

    def has_checks(self, servers: StackServers | None) -> bool:
        """Return True if `examine` has something to check. `servers`: None outside of an embedded stack."""
        return False

    def examine(self, servers: StackServers | None) -> Iterator[GatewayFinding]:
        """Yield findings for the doctor, for example about a server that the gateway uses. Raises InvalidSettings."""
        return iter(())
