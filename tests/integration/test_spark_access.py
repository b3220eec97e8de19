"""Local users without the secrets of a Spark session can't reach it.

Each test is a client in another process than the JVM that it attacks. The client speaks Spark's and Py4J's own protocols over a
socket, without the secret.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from py4j.java_gateway import JavaGateway
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from tests.support.waiting import stretched, wait_until

_RPC_REQUEST, _RPC_RESPONSE, _RPC_FAILURE = 3, 4, 5
"""Types of frames of `org.apache.spark.network.protocol.Message`."""
_RESPONSE_S = 10.0
_BROADCAST = "broadcast_31337"
"""A block that a later task of the session would read, if it existed."""


@pytest.fixture
def jvm(spark: SparkSession) -> Any:
    return spark._jvm


@pytest.fixture
def gateway(spark: SparkSession) -> JavaGateway:
    found = SparkContext._gateway
    assert found is not None
    return found


@pytest.mark.guarantee(
    "G775",
    "A process without the secret of a Spark session can neither store a block, send a message to the driver, nor "
    "call a function of the session. The secrets are in no command line and no environment. On a cluster without a "
    "secret, no session starts.",
    promise="secrets-and-connections-are-protected",
)
def test_a_client_without_the_secret_cannot_store_a_block(jvm: Any) -> None:
    """A stored block is deserialized by the next task that reads its number, so its sender could run code."""
    port = jvm.org.apache.spark.SparkEnv.get().blockManager().blockTransferService().port()
    kind, text = send_rpc(port, upload_message(jvm))
    assert not is_stored(jvm)
    assert (kind, "challenge" in text) == (_RPC_FAILURE, True), text


@pytest.mark.long
@pytest.mark.guarantee("G775")
def test_no_port_of_the_jvm_accepts_a_message_without_the_secret(
    spark: SparkSession, jvm: Any, gateway: JavaGateway
) -> None:
    ports = listening_ports(gateway.proc.pid)
    driver = int(spark.sparkContext.getConf().get("spark.driver.port") or 0)
    assert driver in ports
    assert len(ports) >= 3  # driver, block manager, Py4J
    message = upload_message(jvm)
    # A port that expects another protocol may never respond, so the ports are attacked at the same time.
    with ThreadPoolExecutor(len(ports)) as clients:
        kinds = list(clients.map(lambda port: send_rpc(port, message)[0], ports))
    assert _RPC_RESPONSE not in kinds, list(zip(ports, kinds, strict=True))
    assert not is_stored(jvm)


@pytest.fixture
def calls(spark: SparkSession, tmp_path: Path) -> Iterator[list[int]]:
    """The batches that a running `foreachBatch` function was called with."""
    batches: list[int] = []

    def process(rows: DataFrame, batch: int) -> None:
        batches.append(batch)

    query = (
        spark.readStream.format("rate")
        .load()
        .writeStream.foreachBatch(process)
        .trigger(processingTime="0 seconds")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    wait_until(lambda: batches, bool, "a first batch")
    yield batches
    query.stop()


@pytest.mark.long
@pytest.mark.guarantee("G775")
def test_no_port_of_python_calls_a_function_without_the_token(calls: list[int], gateway: JavaGateway) -> None:
    """The token is that of the session's gateway. A client could otherwise commit slices that don't exist."""
    functions = [name for name in gateway.gateway_property.pool.dict if name.startswith("p")]
    ports = listening_ports(psutil.Process().pid)
    assert gateway._callback_server.server_socket.getsockname()[1] in ports
    assert functions
    calls_of_all = [(port, function) for port in ports for function in functions]
    with ThreadPoolExecutor(len(calls_of_all)) as clients:
        responses = clients.map(lambda call: send_call(*call), calls_of_all)
        for (port, function), response in zip(calls_of_all, responses, strict=True):
            assert not response.startswith(b"!"), f"port {port} responds to a call of {function}"
    assert -1 not in calls


@pytest.mark.guarantee("G775")
def test_the_secrets_of_a_session_are_in_no_command_line_and_no_environment(jvm: Any, gateway: JavaGateway) -> None:
    of_spark = jvm.org.apache.spark.SparkEnv.get().securityManager().getSecretKey()
    of_py4j = gateway.gateway_parameters.auth_token
    assert len(of_spark) >= 32
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has ended
            shown = " ".join([*process.cmdline(), *process.environ().values()])
            assert not any(secret in shown for secret in (of_spark, of_py4j))


@pytest.mark.long
@pytest.mark.guarantee("G775")
def test_without_a_secret_no_session_starts_on_a_cluster(class_archive: None, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:
        program = f"""
from pathlib import Path
from strandline.core.errors import InvalidSettings
from strandline.core.settings import Settings
from strandline.processing.spark.session import start_spark

directory = Path({str(tmp_path)!r})
settings = Settings(
    data_dir=directory,
    spark_master="spark://127.0.0.1:{master.getsockname()[1]}",
    spark_driver_host="127.0.0.1",
    spark_checkpoint_dir=directory / "shared",
)
try:
    start_spark(settings, "power", directory)
except InvalidSettings as error:
    print("refused:", error)
"""
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=stretched(120), check=False
        )
    assert "refused: job power can't start on spark://" in ended.stdout, ended.stderr
    assert "Spark has no secret for spark.authenticate; write the secret of the cluster as" in ended.stdout


def upload_message(jvm: Any) -> bytes:
    """The message by which an executor stores a block at another one."""
    conf = jvm.org.apache.spark.SparkConf(False)
    any_class = jvm.scala.reflect.ClassTag.Any()
    level = jvm.org.apache.spark.storage.StorageLevel.MEMORY_ONLY_SER()
    serializer = jvm.org.apache.spark.serializer.JavaSerializer(conf).newInstance()
    metadata = serializer.serialize(jvm.scala.Tuple2(level, any_class), any_class).array()
    content = serializer.serialize("an object that the driver would deserialize", any_class).array()
    upload = jvm.org.apache.spark.network.shuffle.protocol.UploadBlock("app", "1", _BROADCAST, metadata, content)
    return bytes(upload.toByteBuffer().array())


def send_rpc(port: int, message: bytes) -> tuple[int | None, str]:
    """Send the message as a request. Return the type and the content of the response; None if the connection was closed."""
    body = struct.pack(">bqi", _RPC_REQUEST, 1, len(message)) + message
    response = send(port, struct.pack(">q", len(body) + 8) + body)
    return (response[8], response.decode("latin-1")) if len(response) > 8 else (None, "")


def send_call(port: int, function: str) -> bytes:
    """Call the `foreachBatch` function with batch -1, as the JVM does; return the response."""
    return send(port, f"c\n{function}\ncall\nn\nL-1\ne\n".encode())


def send(port: int, request: bytes) -> bytes:
    """Return the first bytes of the response; empty if the connection was closed, or if there is no response."""
    with socket.create_connection(("127.0.0.1", port), timeout=_RESPONSE_S) as connection:
        try:
            connection.sendall(request)
            return connection.recv(4096)
        except OSError:
            return b""


def is_stored(jvm: Any) -> bool:
    blocks = jvm.org.apache.spark.SparkEnv.get().blockManager()
    return bool(blocks.getStatus(jvm.org.apache.spark.storage.BlockId.apply(_BROADCAST)).isDefined())


def listening_ports(pid: int) -> list[int]:
    return [one.laddr.port for one in psutil.Process(pid).net_connections("tcp") if one.status == psutil.CONN_LISTEN]
