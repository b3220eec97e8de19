"""Elasticsearch: one node on loopback, as another user when we are root."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

import httpx

from strandline.core.errors import StackError
from strandline.services.embedded.processes import Program

_JVM_OPTIONS = """\
-Xms512m
-Xmx512m
-XX:-UseG1GC
-XX:+UseSerialGC
-XX:TieredStopAtLevel=1
"""


def elasticsearch_program(home: Path, java: Path, data_dir: Path, log: Path, port: int, transport_port: int) -> Program:
    """Write Elasticsearch's configuration below `data_dir` and say how to start it."""
    config, log_dir, temporary = data_dir / "config", log.parent / "elasticsearch", data_dir / "tmp"
    for directory in (config / "jvm.options.d", data_dir / "data", log_dir, temporary):
        directory.mkdir(parents=True, exist_ok=True)
    for name in ("jvm.options", "log4j2.properties", "roles.yml", "role_mapping.yml", "users", "users_roles"):
        shutil.copyfile(home / "config" / name, config / name)
    (config / "jvm.options.d" / "strandline.options").write_text(_JVM_OPTIONS, encoding="utf-8")
    (config / "elasticsearch.yml").write_text(_settings(data_dir, log_dir, port, transport_port), encoding="utf-8")
    pid_file = data_dir / "elasticsearch.pid"
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "ES_JAVA_HOME": str(java.parent.parent),
        "ES_PATH_CONF": str(config),
        "ES_TMPDIR": str(temporary),
        # The launcher is a JVM of its own that lives for a second.
        "CLI_JAVA_OPTS": "-Xmx64m -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    arguments = ["/bin/bash", str(home / "bin" / "elasticsearch"), "-d", "-p", str(pid_file)]
    return Program(
        name="elasticsearch",
        arguments=[*_user_change(data_dir, log_dir), *arguments],
        log=log,
        is_ready=lambda: _answers(port),
        environment=environment,
        directory=data_dir,
        pid_file=pid_file,
    )


def _settings(data_dir: Path, log_dir: Path, port: int, transport_port: int) -> str:
    settings = {
        "cluster.name": "strandline",
        "node.name": "embedded",
        "discovery.type": "single-node",
        "network.host": "127.0.0.1",
        "http.port": port,
        "transport.port": transport_port,
        "path.data": data_dir / "data",
        "path.logs": log_dir,
        # No login and no TLS: the node listens on loopback only, like every server of the embedded stack.
        "xpack.security.enabled": "false",
        "action.auto_create_index": "false",
        "action.destructive_requires_name": "true",
        # In absolute numbers: the defaults in percent stop a small stack on a large, well-filled disk.
        "cluster.routing.allocation.disk.watermark.low": "600mb",
        "cluster.routing.allocation.disk.watermark.high": "400mb",
        "cluster.routing.allocation.disk.watermark.flood_stage": "200mb",
    }
    return "".join(f"{name}: {value}\n" for name, value in settings.items())


def _user_change(*directories: Path) -> list[str]:
    """The prefix that starts a program as nobody when we are root (Elasticsearch refuses root); else nothing.

    The directories, and only they, become nobody's. The one capability kept lets it pass through parents that are root's
    alone (a data directory from mkdtemp); it grants no writing.
    """
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise StackError("Elasticsearch refuses to run as root, and there is no setpriv to change the user; install util-linux")
    nobody = pwd.getpwnam("nobody")
    for directory in directories:
        for path in [directory, *directory.rglob("*")]:
            os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)
    return [
        setpriv,
        f"--reuid={nobody.pw_uid}",
        f"--regid={nobody.pw_gid}",
        "--clear-groups",
        "--inh-caps=+dac_read_search",
        "--ambient-caps=+dac_read_search",
        # Without this the kernel leaves capabilities out of access(2), with which Java asks whether a file is readable.
        "--securebits=+no_setuid_fixup",
    ]


def _answers(port: int) -> bool:
    """Whether the node answers with its shards allocated as far as one node can."""
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/_cluster/health", params={"timeout": "1s"}, timeout=2.0)
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and answer.json()["status"] in ("green", "yellow")
