"""A standalone Spark cluster on loopback: a master and workers as processes, with their own ports and directories."""

from __future__ import annotations

import os
import re
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark

from benchmarks.process_tree import kill_with_children
from strandline.services.embedded.artifacts import find_java
from strandline.services.processes.child_process import Child, Program, start, stop
from strandline.services.processes.pids import PidFile

_SPARK_HOME = Path(pyspark.__file__).parent
_LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


@dataclass
class SparkCluster:
    """Cluster of processes that are identified by their recorded pids."""

    directory: Path
    master_port: int
    workers: int
    worker_secrets: dict[str, str] = field(default_factory=dict)
    """Additional environment of the workers, which drivers don't have."""
    _children: dict[str, Child] = field(default_factory=dict)

    @property
    def master(self) -> str:
        """Address of the master, in the form of STRANDLINE_SPARK_MASTER."""
        return f"spark://127.0.0.1:{self.master_port}"

    @property
    def checkpoint_dir(self) -> Path:
        """Directory that the cluster's machines would share."""
        return self.directory / "shared"

    @property
    def driver_environment(self) -> dict[str, str]:
        """Environment variables that a driver needs to authenticate to the cluster."""
        return {"SPARK_CONF_DIR": str(self._properties.parent)}

    @property
    def _properties(self) -> Path:
        return self.directory / "conf" / "spark-defaults.conf"

    def start(self) -> None:
        self._properties.parent.mkdir()
        self._properties.touch(mode=0o600)
        self._properties.write_text(
            "spark.authenticate true\n"
            f"spark.authenticate.secret {secrets.token_hex(32)}\n"
            "spark.network.crypto.enabled true\n"
            "spark.master.rest.enabled false\n"
        )
        self.start_master()
        for number in range(1, self.workers + 1):
            self.start_worker(number)

    def stop(self) -> None:
        for name in reversed(list(self._children)):
            self._stop(name)

    def start_master(self) -> None:
        """Start the master. A restarted master recovers its former state."""
        recovery = self.directory / "recovery"
        self._start(
            "master",
            "org.apache.spark.deploy.master.Master",
            ["--host", "127.0.0.1", "--port", str(self.master_port), "--webui-port", "0"],
            ["spark.deploy.recoveryMode=FILESYSTEM", f"spark.deploy.recoveryDirectory={recovery}"],
            "elected leader! New state: ALIVE|Recovery complete",
        )

    def start_worker(self, number: int) -> None:
        """Start a worker of one core, and wait until the master has registered it."""
        self._start(
            f"worker-{number}",
            "org.apache.spark.deploy.worker.Worker",
            [
                "--host",
                "127.0.0.1",
                "--cores",
                "1",
                "--memory",
                "1g",
                "--webui-port",
                "0",
                "--work-dir",
                str(self.directory / f"work-{number}"),
                self.master,
            ],
            [],
            "Successfully registered with master",
        )

    def kill_master(self) -> None:
        self._kill("master")

    def kill_worker(self, number: int) -> None:
        """Kill a worker alone. Its executors detect it and exit."""
        self._kill(f"worker-{number}")

    def kill_executor(self, number: int) -> None:
        """Kill the executors of a worker with their Python processes. The worker starts new ones."""
        for executor in self.executors(number):
            kill_with_children(executor.pid)

    def executors(self, number: int) -> list[psutil.Process]:
        """Return the present executors of a worker."""
        found = []
        for child in psutil.Process(self.worker_pid(number)).children():
            with suppress(psutil.NoSuchProcess):  # an ended process is no executor
                if child.name() == "java":
                    found.append(child)
        return found

    def worker_pid(self, number: int) -> int:
        return self._children[f"worker-{number}"].pid

    def log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    def _start(self, name: str, main: str, arguments: list[str], options: list[str], ready: str) -> None:
        log = self.log(name)
        log.unlink(missing_ok=True)
        program = Program(
            name=name,
            arguments=[
                str(find_java()),
                "-Xmx256m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                *(f"-D{option}" for option in options),
                f"-Dlog4j2.configurationFile={self._logging()}",
                "-cp",
                f"{_SPARK_HOME}/jars/*",
                main,
                "--properties-file",
                str(self._properties),
                *arguments,
            ],
            log=log,
            is_ready=lambda: re.search(ready, log.read_text(encoding="utf-8")) is not None,
            environment=self._environment(),
            directory=self.directory,
        )
        self._children[name] = start(program, PidFile(self.directory), lambda: None)

    def _environment(self) -> dict[str, str]:
        """Return the environment of another machine, without the variables of drivers."""
        kept = {
            name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME", "JDK_JAVA_OPTIONS") if name in os.environ
        }
        repository = str(Path(__file__).parents[2])
        return {
            **kept,
            "SPARK_HOME": str(_SPARK_HOME),
            "PYTHONPATH": repository,
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": "127.0.0.1",
            **self.worker_secrets,
        }

    def _logging(self) -> Path:
        file = self.directory / "log4j2.properties"
        file.write_text(_LOGGING, encoding="utf-8")
        return file

    def _kill(self, name: str) -> None:
        child = self._children.pop(name)
        psutil.Process(child.pid).kill()
        while child.is_alive():
            time.sleep(0.02)
        PidFile(self.directory).remove(name, child.pid)

    def _stop(self, name: str) -> None:
        child = self._children.pop(name)
        stop(name, child.pid, PidFile(self.directory), timeout_s=20)
        child.kill_tree()  # and reap it


@contextmanager
def spark_cluster(workers: int = 2, secrets: dict[str, str] | None = None) -> Iterator[SparkCluster]:
    """Yield a running cluster, and stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="strandline-cluster-") as directory:
        cluster = SparkCluster(Path(directory), _free_port(), workers, secrets or {})
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
