"""Elasticsearch: one node on loopback, as another user if this process is root."""

from __future__ import annotations

import base64
import hashlib
import os
import pwd
import secrets
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx

from strandline.services.certificates import make_dev_certificates
from strandline.services.embedded import as_nobody
from strandline.services.embedded.addresses import STACK_USER
from strandline.services.processes.child_process import Program, emptied
from strandline.services.processes.owned_files import (
    give_tree,
    read_small,
    require_directory,
    require_own_and_empty,
    take_directory,
)
from strandline.services.processes.private_files import write_private
from strandline.services.trust import certificates_for

PID_FILE = "tmp/elasticsearch.pid"
"""File below the data directory of Elasticsearch, in a directory that its user can change."""
_NO_SECURITY: dict[str, object] = {"xpack.security.enabled": "false"}
"""Settings without login and TLS: the node listens on loopback only, like every server of the embedded stack."""
_TRANSPORT = "transport"
"""Directory of the certificate of the transport port, below the configuration."""
_ROUNDS = 1000
"""Rounds of hashing. The password is random and long, so more rounds would protect nothing."""
# The first JIT tier only: it halves the CPU time of a start (14 s to 6 s), and that of the first 80,000 documents. The heap
# grows as needed; by default, Elasticsearch allocates all of it at the start.
_JVM_OPTIONS = """\
-Xms128m
-Xmx512m
-XX:-AlwaysPreTouch
-XX:+UseSerialGC
-XX:TieredStopAtLevel=1
-XX:+ExitOnOutOfMemoryError
-XX:ErrorFile={data_dir}/logs/hs_err_pid%p.log
-Djava.io.tmpdir=${{ES_TMPDIR}}
20-:--add-modules=jdk.incubator.vector
-Dorg.apache.lucene.store.MMapDirectory.sharedArenaMaxPermits=1
{mark}
"""
_LOGGING = """\
status = error
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %p %m (%c{{1}})%n
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
"""


def elasticsearch_program(
    home: Path,
    java: Path,
    data_dir: Path,
    log: Path,
    port: int,
    transport_port: int,
    password: str | None = None,
) -> Program:
    """Write Elasticsearch's configuration below `data_dir`, and return the program. With `password`, only STACK_USER with this
    password can log in, with all rights. No node can connect to the transport port."""
    take_directory(data_dir)
    for directory in (data_dir / "data", data_dir / "logs"):
        require_directory(directory)
    scratch = emptied(data_dir / "tmp")
    # New at each start, and given to the server's user when it is complete, because that user could put links into the last
    # one.
    config = emptied(data_dir / "config", 0o700)
    require_own_and_empty(config)
    (config / "jvm.options.d").mkdir()
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    for name in ("roles.yml", "role_mapping.yml", "users", "users_roles"):
        shutil.copyfile(home / "config" / name, config / name)
    options = _JVM_OPTIONS.format(data_dir=data_dir, mark=_mark(data_dir))
    (config / "jvm.options").write_text(options, encoding="utf-8")
    (config / "log4j2.properties").write_text(_LOGGING.format(log=log), encoding="utf-8")
    security = _NO_SECURITY if password is None else _secured(config, password)
    settings = _settings(data_dir, port, transport_port) | security
    text = "".join(f"{name}: {value}\n" for name, value in settings.items())
    (config / "elasticsearch.yml").write_text(text, encoding="utf-8")
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "ES_JAVA_HOME": str(java.parent.parent),
        "ES_PATH_CONF": str(config),
        "ES_TMPDIR": str(scratch),
        "CLI_JAVA_OPTS": _launcher_options(scratch),
    }
    arguments = ["/bin/bash", str(home / "bin" / "elasticsearch"), "-d", "-p", str(data_dir / PID_FILE)]
    owned = [data_dir / "data", data_dir / "logs", scratch, config, log]
    return Program(
        name="elasticsearch",
        arguments=[*_user_change(owned, data_dir, [home, java.parent.parent]), *arguments],
        log=log,
        is_ready=lambda: _answers(port, password),
        environment=environment,
        directory=data_dir,
        stop_timeout_s=30.0,
        find_server=lambda: find_server(data_dir),
    )


def _launcher_options(scratch: Path) -> str:
    """Return the Java options of the launcher, a separate JVM that lives until the server is up. It leaves a directory at each
    start. This is in `scratch`, unless the path contains a space, at which the launcher's script would split the options."""
    options = "-Xmx64m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    return options if len(str(scratch).split()) > 1 else f"{options} -Djava.io.tmpdir={scratch}"


def find_server(data_dir: Path) -> int | None:
    """Return the pid of the server that runs on `data_dir`, from its pid file. None if the process ended, or is another program.

    The server's user can change the pid file, but not the arguments of a process of another user.
    """
    try:
        pid = int(read_small(data_dir / PID_FILE))
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if _mark(data_dir).encode() in arguments else None


def _mark(data_dir: Path) -> str:
    """Return an argument that only the server of this directory has."""
    return f"-Dstrandline.elasticsearch={data_dir}"


def _secured(config: Path, password: str) -> dict[str, object]:
    """Write the files of the single user, and of a certificate that no other node has."""
    salt = secrets.token_bytes(32)
    derived = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ROUNDS, 32)
    hashed = f"{{PBKDF2}}{_ROUNDS}${base64.b64encode(salt).decode()}${base64.b64encode(derived).decode()}"
    write_private(config / "users", f"{STACK_USER}:{hashed}\n".encode())
    write_private(config / "users_roles", f"superuser:{STACK_USER}\n".encode())
    made = make_dev_certificates(config / _TRANSPORT)
    ssl = "xpack.security.transport.ssl"
    return {
        "xpack.security.enabled": "true",
        "xpack.security.autoconfiguration.enabled": "false",
        "xpack.security.http.ssl.enabled": "false",
        f"{ssl}.enabled": "true",
        f"{ssl}.verification_mode": "certificate",
        f"{ssl}.client_authentication": "required",
        f"{ssl}.key": f"{_TRANSPORT}/{made.server_key.name}",
        f"{ssl}.certificate": f"{_TRANSPORT}/{made.server.name}",
        f"{ssl}.certificate_authorities": f"{_TRANSPORT}/{made.ca.name}",
        "xpack.license.self_generated.type": "basic",
    }


def _settings(data_dir: Path, port: int, transport_port: int) -> dict[str, object]:
    return {
        "cluster.name": "strandline",
        "node.name": "embedded",
        "discovery.type": "single-node",
        "network.host": "127.0.0.1",
        "http.port": port,
        "transport.port": transport_port,
        "path.data": data_dir / "data",
        "path.logs": data_dir / "logs",
        "action.destructive_requires_name": "true",
        # In bytes: the defaults are percentages, which stop a small stack on a large disk that is almost full.
        "cluster.routing.allocation.disk.watermark.low": "600mb",
        "cluster.routing.allocation.disk.watermark.high": "400mb",
        "cluster.routing.allocation.disk.watermark.flood_stage": "200mb",
    }


def _user_change(owned: Sequence[Path], data_dir: Path, read: Sequence[Path]) -> list[str]:
    """Return the prefix that starts a program as the user nobody if this process is root. Elasticsearch refuses root. Otherwise
    empty. Only the directories and files `owned` are given to this user. The program also reads `data_dir` and `read`
    (`as_nobody`)."""
    if os.geteuid() != 0:
        return []
    nobody = pwd.getpwnam("nobody")
    for top in owned:
        give_tree(top, nobody.pw_uid, nobody.pw_gid)
    paths = [str(path) for path in (data_dir, owned[-1], *read)]
    return [sys.executable, "-I", as_nobody.__file__, *paths, "--"]


def _answers(port: int, password: str | None) -> bool:
    """Return True if the node responds and has allocated its shards as far as a single node can."""
    url = f"http://127.0.0.1:{port}"
    try:
        answer = httpx.get(
            f"{url}/_cluster/health",
            params={"timeout": "1s"},
            auth=None if password is None else (STACK_USER, password),
            timeout=2.0,
            trust_env=False,
            verify=certificates_for(url, None),
        )
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and answer.json()["status"] in ("green", "yellow")
