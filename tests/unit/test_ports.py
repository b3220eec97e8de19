"""Ports are opened, changed and closed as the streams' documents say."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.metrics import IngestMetrics
from strandline.ingest.gateway.ports import Ports
from strandline.ingest.gateway.stream_appender import StreamAppender
from strandline.ingest.gateway.tasks import Tasks
from strandline.ingest.udp.gateway import open_sockets
from strandline.ingest.udp.settings import UdpSettings

METRICS = IngestMetrics("tcp")


class RecordingPort:
    def __init__(self, number, appender):
        self.number = number
        self.appender = appender
        self.is_closed = False

    def use(self, appender):
        self.appender = appender

    async def close(self):
        self.is_closed = True


class Bench:
    def __init__(self):
        self.opened = []
        self.taken = set()
        self.tasks = Tasks()
        self.ports = Ports(
            "TCP", 1_000, lambda spec: spec.tcp and spec.tcp.port, self._open, self._appender, self.tasks
        )

    def _open(self, number, appender):
        if number in self.taken:
            raise OSError(98, "Address already in use")
        if number > 65_535:
            raise OverflowError("bind(): port must be 0-65535.")
        self.opened.append(RecordingPort(number, appender))
        return self.opened[-1]

    def _appender(self, spec):
        return StreamAppender(spec, None, METRICS, may_spool=False, record_bytes_max=1_000)


def stream(name, port, **more):
    return StreamSpec.from_document({"stream": name, "schema": {"n": "long"}, "tcp": {"port": port, **more}})


def run(story):
    async def told():
        await story(Bench())

    asyncio.run(told())


def test_a_port_follows_its_document():
    async def story(bench):
        without = StreamSpec.from_document({"stream": "without", "schema": {"n": "long"}})
        bench.ports.update([without, stream("a", 1), stream("also", 1)])
        (port,) = bench.opened
        assert (port.number, port.appender.spec.stream) == (1_001, "a")
        assert METRICS.of("a").is_open.value == 1
        appender = port.appender
        bench.ports.update([stream("a", 1)])
        assert port.appender is appender
        bench.ports.update([stream("a", 1, ack=False), stream("b", 2)])
        assert port.appender.spec.tcp.ack is False
        assert [one.number for one in bench.ports] == [1_001, 1_002]
        bench.ports.update([stream("b", 2)])
        await bench.tasks.settle()
        assert [one.is_closed for one in bench.opened] == [True, False]
        bench.ports.close()
        assert not await bench.tasks.settle()
        assert all(one.is_closed for one in bench.opened)
        assert list(bench.ports) == []

    run(story)


def test_a_port_that_is_taken_is_tried_again_and_logged_once():
    async def story(bench):
        bench.taken.add(1_001)
        with capture_logs() as logs:
            for _ in range(3):
                bench.ports.update([stream("a", 1)])
        assert [line["action"] for line in logs] == ["port_refused"]
        assert bench.opened == []
        bench.taken.clear()
        bench.ports.update([stream("a", 1)])
        assert [one.number for one in bench.opened] == [1_001]

    run(story)


def test_a_port_that_the_offset_makes_too_high_is_refused_and_keeps_no_other_closed():
    async def story(bench):
        with capture_logs() as logs:
            for _ in range(3):
                bench.ports.update([stream("a", 65_000), stream("b", 2)])
        refused, opened = logs
        assert (refused["action"], refused["port"], refused["stream"]) == ("port_refused", 66_000, "a")
        assert refused["reason"].startswith("65000 plus the offset of 1000 is 66000, and ports go from 1 to 65535")
        assert (opened["action"], opened["port"]) == ("port_opened", 1_002)

    run(story)


def test_sockets_of_a_port_that_is_none_are_closed():
    with pytest.raises(OverflowError):  # a socket that is left open is a warning, and so an error
        open_sockets(UdpSettings(udp_receive_buffer_bytes=4_096), 70_000)
