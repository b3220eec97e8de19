"""Kafka: one broker that is its own controller (KRaft), on loopback."""

from __future__ import annotations

import base64
import subprocess
import uuid
from pathlib import Path

from strandline.core.errors import LogUnavailable, StackError
from strandline.log.admin import KafkaAdmin
from strandline.services.embedded.addresses import STACK_USER
from strandline.services.processes.child_process import Program, emptied
from strandline.services.processes.private_files import write_private

_CONTROLLER = "CONTROLLER"

# The first JIT tier only: a start, and the first million records, need a third less CPU time.
_JAVA_OPTIONS = [
    "-Xms64m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
]
_LOGGING = """\
appenders=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %p %m (%c{1})%n
rootLogger.level=WARN
rootLogger.appenderRefs=console
rootLogger.appenderRef.console.ref=console
logger.server.name=org.apache.kafka.server
logger.server.level=INFO
logger.kafka.name=kafka.server
logger.kafka.level=INFO
"""


def kafka_program(
    home: Path,
    java: Path,
    data_dir: Path,
    log: Path,
    port: int,
    controller_port: int,
    password: str | None = None,
) -> Program:
    """Write Kafka's configuration below `data_dir`, format its storage on the first start, and return the program. With
    `password`, only STACK_USER with this password can log in, on all ports. The settings of this process must match."""
    data_dir.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    storage = data_dir / "log"
    (data_dir / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")
    java_command = [
        str(java),
        *_JAVA_OPTIONS,
        f"-Dlog4j2.configurationFile={data_dir / 'log4j2.properties'}",
        f"-Djava.io.tmpdir={emptied(data_dir / 'tmp')}",  # a killed broker leaves its native libraries
        "-cp",
        f"{home}/*",
    ]
    if not storage.exists():
        _format(java_command, data_dir, storage, port, controller_port)
    properties = data_dir / "server.properties"
    write_private(properties, _properties(storage, port, controller_port, password).encode())
    return Program(
        name="kafka",
        arguments=[*java_command, "kafka.Kafka", str(properties)],
        log=log,
        is_ready=lambda: _answers(port),
        directory=data_dir,
    )


def login_module(password: str, *more: str) -> str:
    """Return the login with this password in the form of Kafka's programs. The password must not contain a quotation mark or a
    backslash."""
    options = " ".join((f'username="{STACK_USER}"', f'password="{password}"', *more))
    return f"org.apache.kafka.common.security.plain.PlainLoginModule required {options};"


def _login_properties(password: str) -> dict[str, str]:
    """Return the properties of a login. The controller's port also requires it, because its clients can change topics and
    settings."""
    module = login_module(password, f'user_{STACK_USER}="{password}"')
    name = "SASL_PLAINTEXT"
    return {
        "listener.security.protocol.map": f"{name}:{name},{_CONTROLLER}:{name}",
        "inter.broker.listener.name": name,
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        f"listener.name.{name.lower()}.plain.sasl.jaas.config": module,
        f"listener.name.{_CONTROLLER.lower()}.plain.sasl.jaas.config": module,
    }


def _properties(storage: Path, port: int, controller_port: int, password: str | None = None) -> str:
    protocol = "PLAINTEXT" if password is None else "SASL_PLAINTEXT"
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": _CONTROLLER,
        "listeners": f"{protocol}://127.0.0.1:{port},{_CONTROLLER}://127.0.0.1:{controller_port}",
        "advertised.listeners": f"{protocol}://127.0.0.1:{port}",
        "log.dirs": storage,
        # Strandline creates topics itself, with their retention and partitions. A misspelt name must not create a topic.
        "auto.create.topics.enable": "false",
        "message.max.bytes": 2 * 1024 * 1024,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
        "num.network.threads": 2,
        "num.io.threads": 4,
        "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
    }
    if password is not None:
        settings |= _login_properties(password)
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _format(java_command: list[str], data_dir: Path, storage: Path, port: int, controller_port: int) -> None:
    """Format in a temporary directory and move it to its place, so that an interrupted first start leaves nothing."""
    unfinished = data_dir / f"log.formatting-{uuid.uuid4().hex}"
    unfinished.mkdir()
    properties = data_dir / "format.properties"
    properties.write_text(_properties(unfinished, port, controller_port), encoding="utf-8")
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    arguments = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", f"--config={properties}"]
    answer = subprocess.run(
        [*java_command, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        reason = (answer.stderr or answer.stdout).strip()[-500:]
        raise StackError(f"can't format Kafka's storage in {data_dir}: {reason}")
    unfinished.rename(storage)


def _answers(port: int) -> bool:
    """Return True if the broker responds to a metadata request. Its port is open long before."""
    try:
        KafkaAdmin(f"127.0.0.1:{port}", timeout_s=1.0).check()
    except LogUnavailable:
        return False
    return True
