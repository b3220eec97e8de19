"""Table of the gateways:

Strandline's own by name, and those of packages by their entry points. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from strandline.access.rights import GATEWAY_PAGES, RequiredRight
from strandline.core.errors import FunctionUnusable
from strandline.core.packages import PackagePart, parts_of_packages
from strandline.ingest.gateway.contract import Gateway, GatewayPort

if TYPE_CHECKING:
    from strandline.core.documents import Path
    from strandline.core.streams.stream import StreamSpec

GROUP = "strandline.gateways"
"""Entry point group of packages that provide gateways."""
GATEWAYS = {
    "http": "strandline.ingest.http.entry",
    "mqtt": "strandline.ingest.mqtt.bridge_entry",
    "mqtt-listener": "strandline.ingest.mqtt.server_entry",
    "udp": "strandline.ingest.udp.entry",
    "tcp": "strandline.ingest.tcp.entry",
    "poll": "strandline.ingest.poll.entry",
}
"""Name -> module with the instance `GATEWAY`. Gateways start in this order."""


@cache
def own_gateway(name: str) -> Gateway:
    """Return the gateway of Strandline with this name."""
    gateway: Gateway = import_module(GATEWAYS[name]).GATEWAY
    return gateway


def own_gateways() -> dict[str, Gateway]:
    """Return Strandline's own gateways by name."""
    return {name: own_gateway(name) for name in GATEWAYS}


def installed_gateways() -> dict[str, Gateway]:
    """Return the gateways of Strandline and of packages by name.

    Raises FunctionUnusable if a package's gateway can't be used.
    """
    return own_gateways() | {name: _of_package(part) for name, part in _parts().items()}


def stack_ports() -> dict[str, GatewayPort]:
    """Return the ports of all gateways, by their settings. Raises FunctionUnusable if two gateways have the same setting."""
    found: dict[str, GatewayPort] = {}
    for name, gateway in installed_gateways().items():
        for port in gateway.ports:
            if port.setting in found:
                raise FunctionUnusable(
                    f"the gateway {name} has the setting {port.setting} of another gateway; install another release of its "
                    "package, or uninstall it"
                )
            found[port.setting] = port
    return found


def gateway_actions() -> dict[str, RequiredRight]:
    """Return the requests of Strandline's gateways, each with the right that it needs."""
    return GATEWAY_PAGES | {name: need for one in own_gateways().values() for name, need in one.actions.items()}


def section_problems(stream: StreamSpec) -> Iterator[tuple[Path, str]]:
    """Yield problems in the document's `gateways`, the sections for gateways of packages: path in the document, and
    message.

    For example, no installed package has this gateway, or its model refuses the section.
    """
    from strandline.core.documents import did_you_mean

    for name, data in stream.gateways.items():
        path = ("gateways", name)
        try:
            gateway = _of_package(_parts()[name])
        except KeyError:
            known = ", ".join(sorted(_parts())) or "none"
            meant = did_you_mean(name, _parts())
            yield (
                path,
                f"no installed package brings a gateway '{name}' (entry points of {GROUP}: {known}){meant}; install it for the "
                "control service and for the gateway's process",
            )
            continue
        except FunctionUnusable as error:
            yield path, str(error)
            continue
        model = gateway.document()
        if model is None:
            yield path, f"the gateway {name} reads nothing from documents of streams; remove the section"
            continue
        found = list(model.problems_in(data))
        yield from (((*path, *inner), message) for inner, message in found)
        if not found:
            section = model.model_validate(data)
            yield from (((*path, *inner), message) for inner, message in gateway.problems(section, stream))


def _parts() -> Mapping[str, PackagePart]:
    return parts_of_packages(GROUP, "gateway", frozenset(GATEWAYS))


def _of_package(part: PackagePart) -> Gateway:
    gateway = part.load(Gateway)
    if gateway.name != part.name or not gateway.ports:
        raise FunctionUnusable(
            f"the gateway {part.name} of {part.package} has the name '{gateway.name}' and {len(gateway.ports)} ports; expected "
            "the name of its entry point, and a port for health pages; install another release"
        )
    return gateway
