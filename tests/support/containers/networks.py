"""The networks of a compose file: a bridge for each, and for each container the ways into those that the file gives it.

Every container has a fixed address in each of its networks, and finds the others by a hosts file instead of Docker's name
server. Between the bridges nothing is forwarded, and nothing leads out of the machine.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.containers.compose import Project
from tests.support.containers.machine import Machine

_PREFIX = "172.30"


class Networks:
    def __init__(self, project: Project, machine: Machine) -> None:
        self._machine = machine
        self._services = project.services
        self._numbers = {name: number for number, name in enumerate(project.networks)}
        self._hosts = {name: number for number, name in enumerate(sorted(project.services), start=10)}
        script = "".join(
            f"ip link add {name} type bridge && ip addr add {_PREFIX}.{number}.1/24 dev {name} && ip link set {name} up && "
            for name, number in self._numbers.items()
        )
        # For ports that are published on loopback.
        machine.run("sh", "-ec", f"{script} echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet")
        self._nat("POSTROUTING", "--source", "127.0.0.0/8", "!", "--out-interface", "lo", "--jump", "MASQUERADE")
        for service in project.services.values():
            for port in service.ports:
                self._publish(service.name, port)

    def place(self, service: str) -> Path:
        """The namespace of a container's network."""
        return Path("/run/netns") / service

    def address(self, service: str, network: str) -> str:
        return f"{_PREFIX}.{self._numbers[network]}.{self._hosts[service]}"

    def hosts(self, service: str, hostname: str) -> str:
        """The content of a container's /etc/hosts: itself, and who shares a network with it."""
        lines = ["127.0.0.1 localhost"]
        own = self._services[service].networks
        lines += [f"{self.address(service, network)} {hostname}" for network in own[:1]]
        for other in self._services.values():
            shared = [network for network in own if network in other.networks]
            lines += [f"{self.address(other.name, network)} {other.name}" for network in shared[:1]]
        return "\n".join(lines) + "\n"

    def connect(self, service: str) -> None:
        commands = [f"ip netns add {service}", f"ip -netns {service} link set lo up"]
        for network in self._services[service].networks:
            inner, outer = f"eth{self._numbers[network]}", self._outer(service, network)
            commands += [
                f"ip link add {outer} type veth peer name {inner} address {self._mac(service, network)} netns {service}",
                f"ip link set {outer} master {network} up",
                f"ip -netns {service} addr add {self.address(service, network)}/24 dev {inner}",
                f"ip -netns {service} link set {inner} up",
            ]
        own = self._services[service].networks
        if own:
            # Traffic through a published port has an address of the machine, and returns there.
            commands.append(f"ip -netns {service} route add default via {_PREFIX}.{self._numbers[own[0]]}.1")
        self._machine.run("sh", "-ec", "\n".join(commands))

    def disconnect(self, service: str) -> None:
        """The links go first: those of a namespace that is deleted are taken down some time later."""
        links = [f"ip link delete {self._outer(service, network)}" for network in self._services[service].networks]
        self._machine.run("sh", "-ec", "\n".join([*links, f"ip netns delete {service}"]))

    def _mac(self, service: str, network: str) -> str:
        """Return the same address for each container of a service, as Docker derives it: datagrams to a recreated
        container are not sent to the previous one."""
        return f"02:42:ac:1e:{self._numbers[network]:02x}:{self._hosts[service]:02x}"

    def _outer(self, service: str, network: str) -> str:
        """The machine's end of a container's way into a network."""
        return f"v{self._hosts[service]}-{self._numbers[network]}"

    def _publish(self, service: str, port: str) -> None:
        """A line like 127.0.0.1:8080:8080/tcp."""
        numbers, _, protocol = port.partition("/")
        address, outer, inner = numbers.split(":")
        network = self._services[service].networks[0]
        to = f"{self.address(service, network)}:{inner}"
        where = ["--destination", address, "--protocol", protocol or "tcp", "--dport", outer]
        self._nat("OUTPUT", *where, "--jump", "DNAT", "--to-destination", to)

    def _nat(self, chain: str, *rule: str) -> None:
        self._machine.run("iptables", "--table", "nat", "--append", chain, *rule)
