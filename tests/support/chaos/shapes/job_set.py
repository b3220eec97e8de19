"""Jobs over streams of mixed shapes: one stream and one job for each shape, and three jobs over the meters (`counters.py`).

The jobs of shapes emit each row, as it is read, and windows of the rows. The senders of a stream use one gateway.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from strandline.services.embedded.addresses import Ports
from tests.support.chaos.checking.pace import DELAY_MS, IDLE_MS, MAX_AHEAD_MS, SHORT, Pace
from tests.support.chaos.checking.versions import Version
from tests.support.chaos.more_jobs import ChaosJob
from tests.support.chaos.shapes.arrays import ARRAYS
from tests.support.chaos.shapes.bridged import BRIDGED
from tests.support.chaos.shapes.counters import METER_JOBS
from tests.support.chaos.shapes.members import MEMBERS
from tests.support.chaos.shapes.meters import METERS
from tests.support.chaos.shapes.packs import PACKS
from tests.support.chaos.shapes.parallel import PARALLEL
from tests.support.chaos.shapes.pipeline import ROWS, pipeline_of
from tests.support.chaos.shapes.samples import SAMPLES
from tests.support.chaos.shapes.shape import Shape, ShapeJob
from tests.support.chaos.shapes.table import TABLE
from tests.support.chaos.shapes.wide import WIDE
from tests.support.chaos.work import BEGIN_BEFORE_S, RestingLoad
from tests.support.faults.history import History
from tests.support.faults.http_load import HttpLoad
from tests.support.faults.load import Batch
from tests.support.faults.mqtt_load import MqttLoad, topic_of
from tests.support.faults.tcp_load import TcpLoad
from tests.support.faults.udp_load import UdpLoad

ROWS_SHAPES = (ARRAYS, MEMBERS, WIDE, PARALLEL, TABLE, BRIDGED, PACKS, SAMPLES)
SHAPES = {shape.name: shape for shape in (*ROWS_SHAPES, replace(METERS, jobs=METER_JOBS))}
OWN_PORTS = {"parallel": 8082, "wide": 8083, "packs": 8094}
"""Ports of the streams whose gateway has a port for each. They move with the stack, and no port of another stack of the tests
(`tests/support/ports.py`) is equal to one of them."""
CLIENTS = 4
BATCH_MESSAGES = 1.5
"""Messages that a client sends together, in the mean."""
PARTITIONS = 3
_ID = re.compile(rb'"id":"([^"]+)"')
_PIPELINE = """\
pipeline: {job}
input: {{stream: {stream}}}
event_time: {{field: ts, delay: {delay}, idle_timeout: {idle}, max_ahead: {ahead}}}
steps:
{derive}\
  - derive: {{scaled: value * {times}}}
  - emit: [{{elasticsearch: {job}-{rows}}}]
    name: {rows}
  - window:
      name: short
      tumbling: {short}
      by: [sensor]
      aggregate:
        n: count(*)
        known: count(value)
        total: sum(scaled)
        peak: max(value)
        low: min(value)
    emit: [{{elasticsearch: {job}-short}}]
"""


class ShapeJobs:
    """A stream for each shape, and the jobs that read it."""

    gateways: tuple[str, ...] = ("http", "mqtt-listener", "tcp", "udp")
    has_lookup = False

    def __init__(self, shapes: Mapping[str, Shape] = SHAPES) -> None:
        self.shapes = {shape.stream: shape for shape in shapes.values()}
        self._of_jobs = {one.name: (shape, one) for shape in shapes.values() for one in jobs_of(shape)}
        self.jobs = [
            ChaosJob(name, shape.stream, one.stages, one.pipeline, records=one.records)
            for name, (shape, one) in self._of_jobs.items()
        ]

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(self.shapes)

    def stream_documents(self) -> list[str]:
        return [stream_document(shape) for shape in self.shapes.values()]

    def lookup_documents(self, version: int) -> list[str]:
        return []

    def pipeline_documents(self, pace: Pace, versions: Mapping[str, int]) -> list[str]:
        return [pipeline_document(shape, one, pace, versions[name]) for name, (shape, one) in self._of_jobs.items()]

    def load(
        self, stream: str, history: History, ports: Mapping[str, int], *, seed: int, speed: int, rate: int
    ) -> RestingLoad:
        shape = self.shapes[stream]
        port = partial(_port_of, shape, ports)
        return LOADS[shape.gateway](history, port, shape, seed=seed, speed=speed, rate=rate)


def jobs_of(shape: Shape) -> tuple[ShapeJob, ...]:
    """Return the jobs that read a shape's stream."""
    pipeline = partial(pipeline_of, shape=shape)
    return shape.jobs or (ShapeJob(f"chaos-{shape.name}", _PIPELINE, (SHORT,), pipeline, records=ROWS),)


def stream_document(shape: Shape) -> str:
    """Return the document of a shape's stream, as JSON, which is YAML."""
    port = OWN_PORTS.get(shape.name)
    gateways: dict[str, dict[str, Any]] = {
        "http": {},
        "mqtt-listener": {"mqtt": {"topics": [f"{topic_of(shape.stream)}/+"], "fields": {"client": 2}}},
        "tcp": {"tcp": {"port": port, "ack": True}},
        "udp": {"udp": {"port": port}},
    }
    head = {"stream": shape.stream, "partitions": PARTITIONS, "retention": "7d"}
    return json.dumps({**head, **shape.document, **gateways[shape.gateway]}) + "\n"


def pipeline_document(shape: Shape, job: ShapeJob, pace: Pace, version: int) -> str:
    return job.document.format(
        job=job.name,
        stream=shape.stream,
        derive=shape.derive,
        rows=ROWS,
        short=f"{pace.short_ms}ms",
        long=f"{pace.long_ms}ms",
        within=f"{2 * pace.long_ms}ms",
        delay=f"{DELAY_MS}ms",
        idle=f"{IDLE_MS}ms",
        ahead=f"{MAX_AHEAD_MS}ms",
        times=Version(version).times,
    )


def _port_of(shape: Shape, ports: Mapping[str, int]) -> int:
    """Return the port at which a stream's gateway takes its records."""
    of_gateway = {"http": "http_port", "mqtt-listener": "mqtt_listener_port"}
    if shape.gateway in of_gateway:
        return ports[of_gateway[shape.gateway]]
    return OWN_PORTS[shape.name] + ports["http_port"] - Ports().gateways["http_port"]


def id_in(value: bytes) -> str | None:
    """Return the first id in a record of any shape."""
    found = _ID.search(value)
    return None if found is None else found[1].decode()


class _ShapeLoad(RestingLoad):
    """Senders of one shape, some of whose records are sent twice."""

    id_of = staticmethod(id_in)  # type: ignore[assignment]

    def __init__(
        self, history: History, port: Callable[[], int], shape: Shape, *, seed: int, speed: int, rate: int
    ) -> None:
        pause_s = CLIENTS * BATCH_MESSAGES / max(rate, 1)
        how = {"clients": CLIENTS, "seed": seed, "pause_s": pause_s, "answer_timeout_s": 20.0, "resends": self.hears}
        super().__init__(history, port, shape.stream, **how)  # type: ignore[arg-type]
        self._sender = shape.sender(self._random)
        self._speed = speed
        self._began_s = time.monotonic()
        self._began_ms = int((time.time() - BEGIN_BEFORE_S) * 1000)
        self._sent: dict[str, tuple[str, bytes]] = {}
        """For each client, a record that it sent before."""

    def event_now_ms(self) -> int:
        return self._began_ms + int((time.monotonic() - self._began_s) * self._speed * 1000)

    async def pause(self, client: str) -> None:
        await super().pause(client)
        while self._sender.is_away(client, self.event_now_ms()) and not self.is_stopping:  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # sleeps: the time of the outage

    def next_batch(self, client: str, number: int) -> Batch:
        chance = self._random
        batch = self._sender.batch(client, number, self.event_now_ms(), int(time.time() * 1000))
        if chance.random() < 0.02 and client in self._sent:
            batch.insert(0, self._sent[client])  # a sender that forgot that it sent this one
        if chance.random() < 0.1:
            self._sent[client] = batch[-1]
        return batch


class _OverHttp(_ShapeLoad, HttpLoad):
    pass


class _OverMqtt(_ShapeLoad, MqttLoad):
    pass


class _OverTcp(_ShapeLoad, TcpLoad):
    pass


class _OverUdp(_ShapeLoad, UdpLoad):
    pass


LOADS: dict[str, type[_ShapeLoad]] = {
    "http": _OverHttp,
    "mqtt-listener": _OverMqtt,
    "tcp": _OverTcp,
    "udp": _OverUdp,
}
"""Gateway -> its senders."""
