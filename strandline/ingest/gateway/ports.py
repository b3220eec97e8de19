"""The ports of a gateway: opened, changed, and closed as the streams' documents require."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

import structlog

from strandline.core.streams.stream import StreamSpec
from strandline.ingest.gateway.stream_appender import StreamAppender
from strandline.ingest.gateway.tasks import Tasks

logger = structlog.get_logger()


class Port(Protocol):
    """One open port and the stream that receives its records."""

    appender: StreamAppender

    def use(self, appender: StreamAppender) -> None:
        """Append the records that arrive from now on with this appender, made for a changed document."""

    async def close(self) -> None:
        """Accept no more records, and return when all received records are confirmed or refused."""


P = TypeVar("P", bound=Port)
_PORT_MAX = 65_535


class Ports(Generic[P]):
    """All open ports of one protocol. A port that can't be opened is tried again with each update, and logged once.

    `port_of` returns the port in a stream's document. `open_port` raises OSError.
    """

    def __init__(
        self,
        protocol: str,
        port_offset: int,
        port_of: Callable[[StreamSpec], int | None],
        open_port: Callable[[int, StreamAppender], P],
        make_appender: Callable[[StreamSpec], StreamAppender],
        tasks: Tasks,
    ) -> None:
        self._protocol = protocol
        self._port_offset = port_offset
        self._port_of = port_of
        self._open_port = open_port
        self._make_appender = make_appender
        self._ports: dict[int, P] = {}
        self._failed: dict[int, str] = {}
        """Port number -> logged reason why it can't be opened."""
        self._tasks = tasks

    def __iter__(self) -> Iterator[P]:
        return iter(list(self._ports.values()))

    def update(self, streams: list[StreamSpec]) -> None:
        """Open, change, and close ports for these streams. If two streams have the same port, the first one gets it."""
        wanted: dict[int, StreamSpec] = {}
        for spec in streams:
            port = self._port_of(spec)
            if port is not None:
                wanted.setdefault(port + self._port_offset, spec)
        for number in self._ports.keys() - wanted.keys():
            self._close(number)
        for number, spec in wanted.items():
            known = self._ports.get(number)
            if known is None:
                self._open(number, spec)
            elif known.appender.spec != spec:
                known.appender.metrics.is_open.set(0)
                known.use(self._make_appender(spec))
                known.appender.metrics.is_open.set(1)
                self._log("has changed", "port_changed", number, known)

    def close(self) -> None:
        """Begin to close every port. `tasks` are done when all are closed."""
        for number in list(self._ports):
            self._close(number)

    def _open(self, number: int, spec: StreamSpec) -> None:
        try:
            if not 0 < number <= _PORT_MAX:
                raise OSError(
                    f"{number - self._port_offset} plus the offset of {self._port_offset} is {number}, and ports go from 1 to "
                    f"{_PORT_MAX}; start with a smaller --port-offset, or name another port in the stream's document"
                )
            port = self._open_port(number, self._make_appender(spec))
        except OSError as error:
            if self._failed.get(number) != str(error):
                self._failed[number] = str(error)
                logger.error(
                    f"can't open a {self._protocol} port; trying again every few seconds",
                    action="port_refused", port=number, stream=spec.stream, reason=str(error),
                )  # fmt: skip
            return
        self._failed.pop(number, None)
        self._ports[number] = port
        port.appender.metrics.is_open.set(1)
        self._log("is open", "port_opened", number, port)

    def _close(self, number: int) -> None:
        port = self._ports.pop(number)
        self._tasks.start(port.close())
        self._log("is closed", "port_closed", number, port)

    def _log(self, what: str, action: str, number: int, port: P) -> None:
        logger.info(f"a {self._protocol} port {what}", action=action, port=number, stream=port.appender.spec.stream)
