"""One container of a service: created from an image and its volumes, started, checked, stopped, recreated."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import uuid
from pathlib import Path

from tests.support.containers.bundles import CAPABILITIES, SHM_BYTES, Bundle, configuration, user_and_home
from tests.support.containers.compose import Service
from tests.support.containers.dockerfile import Image
from tests.support.containers.machine import Machine
from tests.support.containers.networks import Networks
from tests.support.containers.overlays import mount
from tests.support.waiting import stretched

INIT = Path(shutil.which("tini-static") or "/usr/bin/tini-static")
LOG_TAIL_CHARS = 6_000


class Container:
    """A container as the service defines it, in its own namespaces and control groups.

    Its network and its tmpfs end with each stop. Files outside of its volumes last until it is recreated.
    """

    def __init__(self, service: Service, image: Image, machine: Machine, networks: Networks, directory: Path) -> None:
        self.service = service
        self.name = service.name
        self._image = image
        self._machine = machine
        self._networks = networks
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._id = ""
        self.log = directory / "logs" / f"{service.name}.log"
        self.log.parent.mkdir(exist_ok=True)
        self.is_healthy = False
        self._probe: subprocess.Popen[bytes] | None = None
        self._probe_due = self._probe_deadline = self._started = 0.0
        self._failures = 0
        self.make()

    def make(self, hostname: str = "") -> None:
        """A new container: only the volumes stay. `hostname`: another one than the file names."""
        if self._id:
            self._machine.run("umount", self._home / "root")
        self._id = uuid.uuid4().hex[:12]
        self._home = self._directory / f"{self.name}-{self._id}"
        mount(self._machine, self._image.layers, self._home / "changes", self._home / "root")
        # Docker names a container that the file does not name by its id.
        self._hostname = hostname or self.service.hostname or self._id
        text = json.dumps(configuration(self._bundle(), self._home / "root"))
        (self._home / "config.json").write_text(text, encoding="utf-8")

    def start(self) -> None:
        assert self._process is None
        self._networks.connect(self.name)
        log = self.log.open("ab")
        command = self._machine.command("runc", "run", "--bundle", self._home, self._id)
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        self.is_healthy, self._failures, self._probe = False, 0, None
        self._started = time.monotonic()
        self._probe_due = self._started + (self.service.health.interval_s if self.service.health else 0)

    def stop(self) -> int:
        """End it as Docker does, and return its exit code. Raises AssertionError where it had to be killed."""
        self._signal(self._image.stop_signal)
        return self._ended(stretched(self.service.stop_grace_s))

    def kill(self) -> None:
        self._signal("SIGKILL")
        self._ended(30)

    def wait(self, timeout_s: float) -> int:
        """The exit code of a service that runs to its end."""
        return self._ended(timeout_s)

    def delete(self) -> None:
        """End it at once; nothing of its control groups is left."""
        if self.is_running:
            self._machine.run("runc", "delete", "--force", self._id)
        if self._process is not None:
            self._ended(30)

    def execute(self, *arguments: str, given: str = "", timeout_s: float = 120) -> str:
        """Run a program in it, like `docker compose exec`. See `Machine.run`."""
        return self._machine.run("runc", "exec", self._id, *arguments, given=given, timeout_s=timeout_s)

    def look(self) -> None:
        """Begin or end a probe of its health when that is due. Raises AssertionError when it ended or became unhealthy."""
        health = self.service.health
        if health is None:
            return
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self._process.returncode}:\n{self.tail()}")
        now = time.monotonic()
        if self._probe is None:
            if now >= self._probe_due:
                with self._probe_log.open("wb") as log:
                    command = self._machine.command("runc", "exec", self._id, *health.test)
                    self._probe = subprocess.Popen(command, stdout=log, stderr=log)
                self._probe_deadline = now + stretched(health.timeout_s)
            return
        code = self._probe.poll()
        if code is None and now < self._probe_deadline:
            return
        if code is None:
            self._probe.kill()
            self._probe.wait()
        self._probe, self._probe_due = None, now + health.interval_s
        self.is_healthy = code == 0
        if code == 0:
            self._failures = 0
        elif now > self._started + stretched(health.start_period_s):
            self._failures += 1
            if self._failures >= health.retries:
                said = "no answer in time" if code is None else self._probe_log.read_text(errors="replace")
                raise AssertionError(f"{self.name} is unhealthy: {said}\n{self.tail()}")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_TAIL_CHARS:]

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def _probe_log(self) -> Path:
        return self._home / "probe.log"

    def _signal(self, name: str) -> None:
        self._machine.run("runc", "kill", self._id, name)

    def _ended(self, timeout_s: float) -> int:
        assert self._process is not None
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {timeout_s:g} s:\n{self.tail()}") from None
        if self._probe is not None:
            self._probe.wait()
        self._process, self.is_healthy = None, False
        self._networks.disconnect(self.name)
        return code

    def _bundle(self) -> Bundle:
        service, image = self.service, self._image
        passwd = self._machine.run("cat", self._home / "root/etc/passwd")
        user, home = user_and_home(service.user or image.user, passwd)
        arguments = [*image.entrypoint, *(service.command or image.command)]
        binds = [*self._files(), *self._volumes()]
        if service.has_init:
            arguments = ["/sbin/docker-init", "--", *arguments]
            binds.append((INIT, "/sbin/docker-init", True))
        added = service.added_capabilities
        return Bundle(
            arguments=arguments,
            environment=image.environment | {"HOSTNAME": self._hostname, "HOME": home} | service.environment,
            user=user,
            directory=image.directory,
            hostname=self._hostname,
            read_only=service.is_read_only,
            binds=binds,
            tmpfs=service.tmpfs,
            capabilities=added if service.drops_all_capabilities else [*CAPABILITIES, *added],
            no_new_privileges=not service.may_gain_rights,
            open_files=service.open_files,
            shm_bytes=service.shm_bytes or SHM_BYTES,
            memory_bytes=service.memory_bytes,
            processes=service.processes,
            network=self._networks.place(self.name),
            name=self._id,
        )

    def _files(self) -> list[tuple[Path, str, bool]]:
        """Return the files that Docker mounts over the image's own files."""
        texts = {
            "hosts": self._networks.hosts(self.name, self._hostname),
            "hostname": f"{self._hostname}\n",
            "resolv.conf": "",
        }
        for name, text in texts.items():
            (self._home / name).write_text(text)
        return [(self._home / name, f"/etc/{name}", False) for name in texts]

    def _volumes(self) -> list[tuple[Path, str, bool]]:
        binds = []
        for volume in self.service.volumes:
            source = self._directory / "volumes" / volume.source if volume.is_named else Path(volume.source)
            if volume.is_named:
                self._fill(source, volume.target)
            binds.append((source, volume.target, volume.read_only))
        named = {volume.target for volume in self.service.volumes}
        for target in set(self._image.volumes) - named:
            source = self._home / f"volume{re.sub('/', '-', target)}"
            self._fill(source, target)
            binds.append((source, target, False))
        return binds

    def _fill(self, volume: Path, target: str) -> None:
        """A volume that is still empty gets what the image has in its place: content, owner and mode."""
        volume.mkdir(parents=True, exist_ok=True)
        inside = f"{self._home}/root{target}"
        script = f'[ -d {inside} ] && [ -z "$(ls -A {volume})" ] || exit 0; cp -a {inside}/. {volume}/'
        self._machine.run("sh", "-c", script)
