"""Is the machine fit for a stack? Asked before anything slow begins; each answer is one sentence that says what to do."""

from __future__ import annotations

import shutil
import socket
import tempfile
from dataclasses import asdict
from pathlib import Path

from strandline.core.errors import StackError
from strandline.services.embedded.addresses import Ports

FREE_BYTES_MIN = 1024 * 1024 * 1024
"""Elasticsearch stops taking shards below 400 MB; the rest is for records and results."""
_MEANT_FOR = {
    "kafka": "Kafka",
    "kafka_controller": "Kafka's controller",
    "elasticsearch": "Elasticsearch",
    "elasticsearch_transport": "Elasticsearch's transport",
    "mqtt": "the MQTT broker",
    "control": "the control service",
    "http": "the HTTP gateway",
}


def require_data_dir(data_dir: Path) -> None:
    """Make the data directory. Raises StackError when it can't be written or has too little room left."""
    remedy = "choose another with --data-dir"
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=data_dir):
            pass
    except OSError as error:
        raise StackError(f"the data directory {data_dir} cannot be written ({error.strerror}); {remedy}") from error
    require_free_space(data_dir, FREE_BYTES_MIN, "a stack", remedy)


def require_free_space(directory: Path, needed_bytes: int, what: str, remedy: str) -> None:
    """Raises StackError when the directory's disk has less room than needed."""
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needed_bytes:
        raise StackError(
            f"only {free_bytes // 2**20} MB are free in {directory} and {what} needs {needed_bytes // 2**20} MB; "
            f"free some space, or {remedy}"
        )


def require_free_ports(ports: Ports) -> None:
    """Raises StackError that names the first port which another program listens on."""
    for name, port in asdict(ports).items():
        if not is_free(port):
            who = _MEANT_FOR.get(name, name)
            raise StackError(
                f"port {port} on 127.0.0.1, meant for {who}, is taken by another program; stop that program, or move all "
                "ports of the stack with --port-offset N"
            )


def is_free(port: int) -> bool:
    """Whether a server could listen on the port of loopback now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a connection of yesterday's server that still lingers is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
