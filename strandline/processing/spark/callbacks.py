"""Authentication of the JVM's calls into Python.

The JVM runs `foreachBatch` functions by Py4J over a loopback port of the Python process. PySpark lets every local process use
this port. It requires a token only in the other direction, from Python to the JVM.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaObject
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started


def require_token() -> None:
    """Start the callback server of this process so that it refuses a client without the token of the session's gateway.

    The token reaches the JVM through the authenticated gateway. Py4J has no option for it, so the field of its client is set.
    """
    gateway: Any = SparkContext._gateway
    token = gateway.java_parameters.auth_token
    gateway.python_parameters.auth_token = token
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    client = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()
    field = gateway.jvm.java.lang.Class.forName("py4j.CallbackClient").getDeclaredField("authToken")
    field.setAccessible(True)
    field.set(client, token)
