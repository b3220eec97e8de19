"""Kafka and Elasticsearch for the tests: real servers, started once for a run on free ports, stopped at its end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from strandline.core.settings import Settings
from strandline.processing.spark import class_archive_maker
from strandline.processing.spark.class_archive import find_archive
from strandline.services.embedded.stack import Stack
from strandline.services.processes.child_process import Program
from tests.support.kafka_storage import provide_storage
from tests.support.messages import RegistryServer
from tests.support.ports import free_port_offset
from tests.support.waiting import stretched


@pytest.fixture(scope="session")
def schema_registry() -> Iterator[RegistryServer]:
    """The schema registry of the stack, of the test's own making."""
    server = RegistryServer()
    yield server
    server.close()


class PatientStack(Stack):
    """A stack whose servers may take longer to start on a machine that has other work."""

    def _start(self, program: Program) -> None:
        super()._start(replace(program, ready_timeout_s=stretched(program.ready_timeout_s)))


@pytest.fixture(scope="session")
def servers(schema_registry: RegistryServer) -> Iterator[Stack]:
    """A stack whose servers are not started yet. Those that tests start are stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="strandline-test-") as directory:
        settings = Settings(standbys=0, schema_registry_url=schema_registry.url)
        stack = PatientStack(settings, Path(directory), free_port_offset(), Console())
        try:
            yield stack
        finally:
            stack.stop()


@pytest.fixture(scope="session")
def class_archive(servers: Stack) -> None:
    """The class archive is there, for the tests that start Spark. It is made once in a clone, by a process that yields to none:
    most of what takes long there is JVMs that start. Where that fails, the archive's own tests say so."""
    environment = {**os.environ, "STRANDLINE_DATA_DIR": str(servers.data_dir)}
    if find_archive(servers.settings.cache_dir) is None:
        subprocess.run([sys.executable, "-m", class_archive_maker.__name__], env=environment, check=False)


@pytest.fixture(scope="session")
def kafka(servers: Stack) -> str:
    """The bootstrap address of a Kafka."""
    provide_storage(servers.data_dir / "kafka" / "log")
    return servers.start_kafka()


@pytest.fixture(scope="session")
def elasticsearch(servers: Stack) -> str:
    """The URL of an Elasticsearch."""
    return servers.start_elasticsearch()
