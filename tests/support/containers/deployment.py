"""The whole of a compose file: images, volumes, networks and containers, started in the order that the file asks for."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from strandline.core.settings import Settings
from strandline.services.embedded.artifacts import ELASTICSEARCH, KAFKA, Artifact, find_java, provide
from tests.support.containers.compose import ROOT, Project
from tests.support.containers.container import Container
from tests.support.containers.dockerfile import Image
from tests.support.containers.images import STANDINS, ImageStore
from tests.support.containers.machine import Machine
from tests.support.containers.networks import Networks
from tests.support.waiting import Patience

KAFKA_TOOLS = Artifact(
    name="kafka-tools-4.2.1",
    dependencies='<dependency org="org.apache.kafka" name="kafka-tools" rev="4.2.1" conf="default->default" transitive="false"/>',
    download_bytes=667_304,
    sums=STANDINS / "kafka-tools-4.2.1.txt",
)
START_TIMEOUT_S = 600
POLL_S = 0.25


def image_store(builder: Machine) -> ImageStore:
    """Images in the cache, with the servers of the embedded stack at hand. `builder`: a machine with this machine's network."""
    cache = Settings.read().cache_dir
    servers = (KAFKA, KAFKA_TOOLS, ELASTICSEARCH)
    homes = {server.name: provide(server, cache, find_java(), lambda _: None) for server in servers}
    return ImageStore(cache / "test-images", builder, homes)


def provide_images(project: Project, services: Iterable[str]) -> dict[str, Image]:
    """Return the image of each service: ours by its Dockerfile, and a substitute for each of the others."""
    with Machine(own_network=False) as builder:
        store = image_store(builder)
        ours = store.build(ROOT / "Dockerfile", ROOT)
        return {
            name: ours if project.services[name].is_built else store.named(project.services[name].image)
            for name in services
        }


class Deployment:
    """Use it in a `with` block. Ends every process at its end and deletes the directory."""

    def __init__(self, project: Project, images: dict[str, Image], directory: Path) -> None:
        self.project = project
        self.machine = Machine(own_network=True)
        self._images = images
        self._directory = directory
        self.networks = Networks(project, self.machine)
        self.containers: dict[str, Container] = {}
        self._ended: set[str] = set()

    def up(self, *names: str) -> None:
        """Start the services, and what they need first; returns when all are healthy or have run to their end well."""
        wanted = self._with_needs(names)
        patience = Patience("up", START_TIMEOUT_S, poll_s=POLL_S)
        while missing := [name for name in wanted if not self._is_up(name)]:
            for name in wanted:
                if name not in self.containers:
                    if all(self._is_met(need, how) for need, how in self.project.services[name].needs.items()):
                        self.container(name).start()
                elif name not in self._ended and self.containers[name].is_running:
                    self.containers[name].look()
                elif name not in self._ended:
                    self._end(name)
            patience.check(missing)
            patience.pause()

    def container(self, name: str) -> Container:
        """The container of a service; made where there is none."""
        if name not in self.containers:
            service = self.project.services[name]
            self.containers[name] = Container(service, self._images[name], self.machine, self.networks, self._directory)
        return self.containers[name]

    def await_health(self, *names: str) -> None:
        """Returns when these containers, which run, are healthy."""
        patience = Patience("healthy", START_TIMEOUT_S, poll_s=POLL_S)
        while missing := [name for name in names if not self.containers[name].is_healthy]:
            for name in names:
                self.containers[name].look()
            patience.check(missing)
            patience.pause()

    def restart(self, name: str) -> int:
        """Restart it, like `docker compose restart`. Return the exit code of the stopped process."""
        code = self.containers[name].stop()
        self.containers[name].start()
        self.await_health(name)
        return code

    def recreate(self, name: str, hostname: str = "") -> int:
        """Another container of the service, with its volumes; `hostname`: another one than the file names."""
        container = self.containers[name]
        code = container.stop()
        container.make(hostname)
        container.start()
        self.await_health(name)
        return code

    def close(self) -> None:
        for container in self.containers.values():
            container.delete()
        self.machine.close()
        shutil.rmtree(self._directory)

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _with_needs(self, names: Iterable[str]) -> list[str]:
        found: dict[str, None] = {}
        for name in names:
            found |= dict.fromkeys(self._with_needs(self.project.services[name].needs))
            found[name] = None
        return list(found)

    def _is_met(self, name: str, condition: str) -> bool:
        if condition == "service_completed_successfully":
            return name in self._ended
        return name in self.containers and self.containers[name].is_healthy

    def _is_up(self, name: str) -> bool:
        return name in self._ended or (name in self.containers and self.containers[name].is_healthy)

    def _end(self, name: str) -> None:
        code = self.containers[name].wait(0)
        if code != 0:
            raise AssertionError(f"{name} ended with {code}:\n{self.containers[name].tail()}")
        self._ended.add(name)
