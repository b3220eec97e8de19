"""Kafka's storage for brokers of tests: formatted once for a run, which starts a JVM, and copied after that."""

from __future__ import annotations

import atexit
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from strandline.core.settings import Settings
from strandline.services.embedded.artifacts import KAFKA, find_java, provide

_CLUSTER_ID = "c3RyYW5kbGluZS10ZXN0cw"
_NODE_ID = 1


def provide_storage(storage: Path, node_id: int = _NODE_ID) -> None:
    """Make `storage` what formatting would make it for the broker `node_id`. All brokers of tests have one cluster id."""
    shutil.copytree(_formatted(), storage)
    properties = storage / "meta.properties"
    text = properties.read_text()
    assert f"node.id={_NODE_ID}\n" in text, text
    # The id of a directory is 16 bytes in base64; no two of one cluster may be the same.
    text = re.sub(r"(?<=directory\.id=)..", f"{node_id:02d}", text)
    properties.write_text(text.replace(f"node.id={_NODE_ID}\n", f"node.id={node_id}\n"))


@cache
def kafka_home() -> Path:
    """Return the directory of Kafka's jars.

    They are downloaded if the cache lacks them, and their checksums are verified once.
    """
    return provide(KAFKA, Settings().cache_dir, find_java(), lambda _bytes: None)


@cache
def _formatted() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="strandline-kafka-storage-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    storage = directory / "log"
    properties = directory / "format.properties"
    properties.write_text(
        "process.roles=broker,controller\n"
        f"node.id={_NODE_ID}\n"
        f"controller.quorum.voters={_NODE_ID}@127.0.0.1:9093\n"
        "controller.listener.names=CONTROLLER\n"
        "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n"
        f"log.dirs={storage}\n"
    )
    command = [str(find_java()), "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_home()}/*", "kafka.tools.StorageTool"]
    arguments = ["format", f"--cluster-id={_CLUSTER_ID}", f"--config={properties}"]
    answer = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr or answer.stdout
    return storage
