"""docker-compose.yml as docker-compose understands it: each service with every word that the file says of it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.support.waiting import stretched

ROOT = Path(__file__).parents[3]
FILES = ("docker-compose.yml", "docker-compose.host.yml", "docker-compose.pages.yml")
_SIZES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_KNOWN = {
    *(
        "build",
        "cap_add",
        "cap_drop",
        "command",
        "depends_on",
        "environment",
        "healthcheck",
        "hostname",
        "image",
        "init",
    ),
    *(
        "mem_limit",
        "network_mode",
        "networks",
        "pids_limit",
        "ports",
        "profiles",
        "read_only",
        "restart",
        "security_opt",
    ),
    *("shm_size", "stop_grace_period", "tmpfs", "ulimits", "user", "volumes"),
}


@dataclass(frozen=True)
class Health:
    test: list[str]
    interval_s: float
    timeout_s: float
    retries: int
    start_period_s: float


@dataclass(frozen=True)
class Volume:
    source: str
    """A name, or the path of a file of the project."""
    target: str
    read_only: bool

    @property
    def is_named(self) -> bool:
        return not self.source.startswith("/")


@dataclass(frozen=True)
class Service:
    name: str
    image: str
    is_built: bool
    command: list[str]
    environment: dict[str, str]
    user: str
    hostname: str
    has_init: bool
    is_read_only: bool
    tmpfs: list[str]
    volumes: list[Volume]
    networks: list[str]
    added_capabilities: list[str]
    drops_all_capabilities: bool
    may_gain_rights: bool
    processes: int
    memory_bytes: int
    shm_bytes: int | None
    open_files: int | None
    ports: list[str]
    needs: dict[str, str]
    """Other services, and what must be true of each: its condition."""
    health: Health | None
    stop_grace_s: float


@dataclass(frozen=True)
class Project:
    services: dict[str, Service]
    inner_networks: set[str]
    networks: list[str] = field(default_factory=list)


def read(profiles: tuple[str, ...] = (), files: tuple[str, ...] = FILES[:1], **variables: str) -> Project:
    """Return the result of `docker-compose config` for the files.

    Raises ValueError for an unsupported field of a service.
    """
    arguments = [f"--file={name}" for name in files] + [f"--profile={name}" for name in profiles]
    ran = subprocess.run(
        ["docker-compose", *arguments, "config"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=stretched(60),
    )
    # The remaining dollar signs are escaped.
    document = yaml.safe_load(ran.stdout.replace("$$", "$"))
    services = {name: _service(name, words) for name, words in document["services"].items()}
    inner = {name for name, words in document["networks"].items() if words.get("internal")}
    return Project(services, inner, sorted(document["networks"]))


def _service(name: str, words: Mapping[str, Any]) -> Service:
    if unknown := set(words) - _KNOWN:
        raise ValueError(f"the service {name} has words that the tests don't know: {sorted(unknown)}")
    security = words.get("security_opt", [])
    if set(security) - {"no-new-privileges:true"} or words.get("network_mode", "none") != "none":
        raise ValueError(f"the service {name} has options that the tests don't know")
    return Service(
        name=name,
        image=words["image"],
        is_built="build" in words,
        command=words.get("command", []),
        environment=words.get("environment", {}),
        user=words.get("user", ""),
        hostname=words.get("hostname", ""),
        has_init=words.get("init", False),
        is_read_only=words.get("read_only", False),
        tmpfs=words.get("tmpfs", []),
        volumes=[_volume(line) for line in words.get("volumes", [])],
        networks=sorted(words.get("networks", {})),
        added_capabilities=words.get("cap_add", []),
        drops_all_capabilities=words.get("cap_drop", []) == ["ALL"],
        may_gain_rights=not security,
        processes=words["pids_limit"],
        memory_bytes=_size(words["mem_limit"]),
        shm_bytes=_size(words["shm_size"]) if "shm_size" in words else None,
        open_files=words.get("ulimits", {}).get("nofile"),
        ports=words.get("ports", []),
        needs={other: how["condition"] for other, how in words.get("depends_on", {}).items()},
        health=_health(words["healthcheck"]) if "healthcheck" in words else None,
        stop_grace_s=_duration_s(words.get("stop_grace_period", "10s")),
    )


def _health(words: Mapping[str, Any]) -> Health:
    kind, *test = words["test"]
    return Health(
        test=["/bin/sh", "-c", *test] if kind == "CMD-SHELL" else test,
        interval_s=_duration_s(words["interval"]),
        timeout_s=_duration_s(words["timeout"]),
        retries=words["retries"],
        start_period_s=_duration_s(words["start_period"]),
    )


def _volume(line: str) -> Volume:
    source, target, mode = line.split(":")
    return Volume(source, target, mode == "ro")


def _duration_s(text: str) -> float:
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"(\d+)(ms|s|m|h)", text))


def _size(text: str) -> int:
    return int(text[:-1]) * _SIZES[text[-1]]
