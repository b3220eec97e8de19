"""The hosts that the polling gateway may request.

A user who registers a stream chooses a URL; the operator of the gateway limits where URLs may lead. The gateway
requests only hosts that `STRANDLINE_POLL_HOSTS` allows, and connects to the address that it has checked: a name that
resolves to another address a moment later changes nothing. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

from strandline.core.errors import PermanentError, TransientError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_SPECIAL = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",  # this network (RFC 6890)
        "100.64.0.0/10",  # carriers' (RFC 6598); metadata of Alibaba Cloud
        "127.0.0.0/8",  # this machine
        "168.63.129.16/32",  # metadata and agents of Azure
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "192.0.0.0/24",  # protocols (RFC 6890); metadata of Oracle Cloud
        "192.88.99.0/24",  # relays of 6to4
        "198.18.0.0/15",  # benchmarks
        "224.0.0.0/3",  # groups, reserved, broadcast
        "2001::/23",  # protocols, Teredo, ORCHID
        "2002::/16",  # 6to4: each contains an IPv4 address
    )
)
_PUBLIC_IPV6 = ipaddress.ip_network("2000::/3")
"""Global unicast (RFC 4291). Outside of it: this machine, link-local, unique local (metadata of AWS and Google Cloud),
groups, and NAT64, which contains an IPv4 address."""


class NotAllowed(PermanentError):
    """The gateway may not request this host."""

    code = "host_not_allowed"


class Unresolved(TransientError):
    """The name has no address at the moment."""

    code = "unreachable"


class AllowedHosts:
    """The hosts that a list of entries allows:

    - A network or an address (`10.1.0.0/16`, `127.0.0.1`): every host with an address in it.
    - A name (`meter.example`) or the subdomains of a name (`*.plant.example`): these, if they resolve to a public
      address or to a private IPv4 address (RFC 1918). Other addresses are special: services without a login listen
      there. `localhost` may resolve to this machine.
    """

    def __init__(self, entries: Sequence[str], setting: str = "STRANDLINE_POLL_HOSTS") -> None:
        """`setting`: name of the setting with the entries, for errors. Raises ValueError for an invalid entry."""
        self.entries = tuple(entries)
        self._setting = setting
        self._networks: list[Network] = []
        self._names: set[str] = set()
        for entry in entries:
            try:
                self._networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                name = entry.strip().lower().rstrip(".")
                if not name.removeprefix("*.") or any(part in name.removeprefix("*.") for part in "/*:@ "):
                    raise ValueError(f"{entry!r} is not an address, a network, or a host name") from None
                self._names.add(name)

    def address_for(self, host: str, addresses: Sequence[str]) -> str:
        """Return the first of the host's addresses that may be connected to. Raises NotAllowed."""
        for text in addresses:
            address = ipaddress.ip_address(text.partition("%")[0])
            if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
                address = address.ipv4_mapped
            if any(address in network for network in self._networks if network.version == address.version):
                return text
            if self._is_named(host) and (
                address.is_loopback if host.lower() == "localhost" else not _is_special(address)
            ):
                return text
        shown = ", ".join(addresses)
        where = host if shown == host else f"{host} ({shown})"
        raise NotAllowed(f"{where} may not be requested; add the host, or its address, to {self._setting}")

    def names(self, host: str) -> bool:
        """Return True if an entry is this host's name, or contains the address that a URL has instead of a name.

        Names aren't resolved, because a name server must not decide this.
        """
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return self._is_named(host)
        return any(address in network for network in self._networks if network.version == address.version)

    def _is_named(self, host: str) -> bool:
        name = host.lower().rstrip(".")
        parents = name.split(".")
        return name in self._names or any(
            "*." + ".".join(parents[first:]) in self._names for first in range(1, len(parents))
        )


def _is_special(address: Address) -> bool:
    """Return True if a name must not lead to this address."""
    is_outside = isinstance(address, ipaddress.IPv6Address) and address not in _PUBLIC_IPV6
    return is_outside or any(address in network for network in _SPECIAL if network.version == address.version)


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host. Raises Unresolved."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unresolved(f"{host} has no address: {error}") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
