"""A proxy in front of a Kafka broker that separates requests, and can corrupt a single one.

A listener of the broker advertises the proxy's address, so every connection of a client passes here. Frames are passed
on unchanged, unless a rule changes them; the rules may be changed at any time. Format:
https://kafka.apache.org/protocol#protocol_network and the Fetch and ListOffsets messages there.

Like the network, a direction keeps its order: while a frame is held, later frames wait. Unlike a client, the broker
never learns that the client has disconnected while a frame for it is held: the frame is delivered anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import threading
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

from tests.support.waiting import stretched

_FRAME_BYTES_MAX = 128 * 1024 * 1024
_LAST_ANSWER_S = 5.0
"""How long a connection to the broker outlives its client, so that the broker takes what was delivered last."""


class Api(IntEnum):
    """Kinds of requests, by their key in the protocol."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26
    DESCRIBE_CONFIGS = 32
    INCREMENTAL_ALTER_CONFIGS = 44
    DESCRIBE_TOPIC_PARTITIONS = 75


class Way(Enum):
    """Frame of an exchange that a rule applies to."""

    REQUEST = "request"
    ANSWER = "answer"


class Drop(Exception):
    """The frame is not passed on; the connection lives."""


class Cut(Exception):
    """Some first bytes of the frame are passed on, then both connections are closed."""

    def __init__(self, bytes_first: int = 0) -> None:
        super().__init__()
        self.bytes_first = bytes_first


@dataclass(frozen=True)
class Frame:
    """A request or its answer, without the four bytes of length before it."""

    api: int
    version: int
    body: bytes
    """The whole frame, its header included."""


Spoil = Callable[[Frame], Coroutine[Any, Any, bytes]]
"""Returns what is passed on instead, later or otherwise; raises Drop or Cut."""


@dataclass
class Rule:
    """Change of frames of one kind, at most `times` times. Counted in `hits` when it begins, in `done` when it ends."""

    api: Api
    way: Way
    spoil: Spoil
    times: int = 1_000_000_000
    hits: int = 0
    done: int = 0
    changed: int = 0
    """Number of partitions whose records were changed, for a rule that changes fetch answers."""

    def takes(self, frame: Frame, way: Way) -> bool:
        return frame.api == self.api and way is self.way and self.hits < self.times


def drop_answer(api: Api, times: int = 1) -> Rule:
    """The request is done and its answer is lost with the connection: the client must ask again."""

    async def spoil(frame: Frame) -> bytes:
        raise Cut

    return Rule(api, Way.ANSWER, spoil, times)


def swallow_answer(api: Api, times: int = 1) -> Rule:
    """The request is done and its answer never comes, on a connection that lives: the client runs into its own timeout."""

    async def spoil(frame: Frame) -> bytes:
        raise Drop

    return Rule(api, Way.ANSWER, spoil, times)


def hold_request(api: Api, seconds: float, times: int = 1) -> Rule:
    """The request reaches the broker that much later, also when the client has long gone."""
    return Rule(api, Way.REQUEST, _held(seconds), times)


def delay_answer(api: Api, seconds: float, times: int = 1_000_000_000) -> Rule:
    """The answer reaches the client that much later."""
    return Rule(api, Way.ANSWER, _held(seconds), times)


def cut_request(api: Api, times: int = 1) -> Rule:
    """Half of the request reaches the broker, then the connection is gone."""

    async def spoil(frame: Frame) -> bytes:
        raise Cut(len(frame.body) // 2)

    return Rule(api, Way.REQUEST, spoil, times)


def cut_request_unsent(api: Api) -> Rule:
    """No such request reaches the broker: the connection is gone before its first byte."""

    async def spoil(frame: Frame) -> bytes:
        raise Cut

    return Rule(api, Way.REQUEST, spoil)


def slow_produce(bytes_per_s: float) -> Rule:
    """Produce requests pass at this rate, on each connection."""

    async def spoil(frame: Frame) -> bytes:
        await asyncio.sleep(len(frame.body) / bytes_per_s)  # sleeps: the fault itself
        return frame.body

    return Rule(Api.PRODUCE, Way.REQUEST, spoil)


def stale_high_watermark() -> Rule:
    """Fetch answers as of a broker whose high watermarks stand still, where each was when the rule first saw it. Records
    from there on are left out."""
    frozen: dict[tuple[bytes, int], int] = {}

    async def spoil(frame: Frame) -> bytes:
        return _with_frozen_watermarks(frame, frozen)

    return Rule(Api.FETCH, Way.ANSWER, spoil)


def empty_fetches(chance: random.Random, share: float, topics: Collection[str] = ()) -> Rule:
    """Fetch answers without records for a share of the partitions that have some, as of a broker whose tiered storage takes
    longer than `remote.fetch.max.wait.ms`. Every second one names no last stable offset. `topics`: only of these, or of all."""

    def change(topic: str, records: bytes) -> tuple[bytes, bool] | None:
        if not records or (topics and topic not in topics) or chance.random() >= share:
            return None
        return b"", chance.random() < 0.5

    return _changed_fetches(change)


def holed_fetches(chance: random.Random, share: float, topics: Collection[str] = ()) -> Rule:
    """Fetch answers that lack one batch, for a share of the partitions that have at least two: never the last one, so that a
    batch follows the hole. `topics`: only of these; empty: of all."""

    def change(topic: str, records: bytes) -> tuple[bytes, bool] | None:
        bounds = _bounds(records)
        if len(bounds) < 2 or (topics and topic not in topics) or chance.random() >= share:
            return None
        begin, end = bounds[chance.randrange(len(bounds) - 1)]
        return records[:begin] + records[end:], False

    return _changed_fetches(change)


def no_replicas_in_sync() -> Rule:
    """Metadata answers by which no replica of any partition is in sync, as of a broker that refuses writes for that reason."""

    async def spoil(frame: Frame) -> bytes:
        return _without_replicas_in_sync(frame)

    return Rule(Api.METADATA, Way.ANSWER, spoil)


def _changed_fetches(change: Callable[[str, bytes], tuple[bytes, bool] | None]) -> Rule:
    """`change`: from topic and records to other records, and True if the answer must not name a stable offset; None: as they are.
    `Rule.changed` counts the partitions that were changed."""

    async def spoil(frame: Frame) -> bytes:
        body, count = _with_changed_records(frame, change)
        rule.changed += count
        return body

    rule = Rule(Api.FETCH, Way.ANSWER, spoil)
    return rule


def _held(seconds: float) -> Spoil:
    async def spoil(frame: Frame) -> bytes:
        await asyncio.sleep(seconds)  # sleeps: the fault itself
        return frame.body

    return spoil


@dataclass
class _Exchanges:
    """The requests of one connection that are not answered yet: correlation id -> api and version."""

    asked: dict[int, tuple[int, int]] = field(default_factory=dict)
    is_cut: bool = False


class KafkaProxy:
    """Runs in a thread of its own, from `start` to `stop`; the broker may come and go meanwhile.

    `is_cut` refuses new connections and closes those that are there, as a network does that is gone.
    """

    def __init__(self, port: int, broker_port: int) -> None:
        self.port = port
        self._broker_port = broker_port
        self._rules: list[Rule] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._passing: set[asyncio.Task[None]] = set()
        self._is_cut = False
        self._is_listening = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"kafka-proxy-{port}", daemon=True)
        self.errors: list[BaseException] = []
        """Errors of the proxy itself. A test checks at the end that this is empty."""

    def start(self) -> None:
        """Return when it listens."""
        self._thread.start()
        assert self._is_listening.wait(stretched(10)), f"the proxy doesn't listen on {self.port}: {self.errors}"

    def stop(self) -> None:
        """Close every connection, and what is held is never delivered."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(stretched(10))

    def add(self, rule: Rule) -> Rule:
        """From now on the rule holds; the first of several that take a frame is the one that is followed."""
        self._rules = [*self._rules, rule]
        return rule

    def clear(self) -> None:
        """Forget all rules. A frame that is held stays held until its time is over."""
        self._rules = []

    def cut(self) -> None:
        """Close every connection and refuse new ones, until `heal`."""
        self._is_cut = True
        self._loop.call_soon_threadsafe(self._close_all)

    def heal(self) -> None:
        self._is_cut = False

    def _close_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except OSError as error:
            self.errors.append(error)
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._take, "127.0.0.1", self.port)
        self._is_listening.set()
        await self._stopping.wait()
        # No more are accepted. Those that were get their transports in the next turn of the loop, and only then is the server
        # closed: a closed one leaves their sockets open.
        for listening in server.sockets:
            self._loop.remove_reader(listening.fileno())
        await asyncio.sleep(0)
        server.close()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._close_all()
        await asyncio.sleep(0)  # a transport closes its socket in the next turn

    def _take(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self._writers.add(client)
        passing = self._loop.create_task(self._pass(client_reader, client))
        self._passing.add(passing)
        passing.add_done_callback(self._passing.discard)

    async def _pass(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """One client's connection: the two directions, until either end is gone and nothing is held for the broker."""
        try:
            if not self._is_cut:
                broker_reader, broker = await asyncio.open_connection("127.0.0.1", self._broker_port)
                await self._pass_on(client_reader, client, broker_reader, broker)
        except OSError:
            pass  # the broker is away, and this client hears so by the end of its connection
        except asyncio.CancelledError:
            pass  # the proxy stops, and no code waits for this task
        finally:
            self._writers.discard(client)
            client.transport.abort()

    async def _pass_on(
        self,
        client_reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        broker_reader: asyncio.StreamReader,
        broker: asyncio.StreamWriter,
    ) -> None:
        exchanges = _Exchanges()
        self._writers.add(broker)
        try:
            requests = asyncio.create_task(self._forward(client_reader, broker, Way.REQUEST, exchanges))
            answers = asyncio.create_task(self._forward(broker_reader, client, Way.ANSWER, exchanges))
            await asyncio.wait({requests, answers}, return_when=asyncio.FIRST_COMPLETED)
            client.transport.abort()
            # A request that is held outlives the client, and the broker is given the time to take it.
            await requests
            if not exchanges.is_cut:
                await asyncio.wait({answers}, timeout=stretched(_LAST_ANSWER_S))
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)
        finally:
            self._writers.discard(broker)
            broker.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way, exchanges: _Exchanges
    ) -> None:
        """Pass on frame by frame, as the rules say, until the connection it reads from ends or a rule cuts it."""
        try:
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                if not 4 <= length <= _FRAME_BYTES_MAX:
                    raise ValueError(f"a frame of {length} bytes is none of Kafka's protocol")
                frame = _identify(await reader.readexactly(length), way, exchanges)
                rule = next((rule for rule in self._rules if rule.takes(frame, way)), None)
                body = frame.body
                if rule is not None:
                    rule.hits += 1
                    try:
                        body = await rule.spoil(frame)
                    except Drop:
                        rule.done += 1
                        continue
                    except Cut as cut:
                        await _write(writer, length, body[: cut.bytes_first])
                        rule.done += 1
                        exchanges.is_cut = True
                        return
                await _write(writer, len(body), body)
                if rule is not None:
                    rule.done += 1
        except (asyncio.IncompleteReadError, OSError):
            return
        except (ValueError, struct.error) as error:
            self.errors.append(error)


async def _write(writer: asyncio.StreamWriter, length: int, body: bytes) -> None:
    """Write a frame.

    If the receiver has disconnected, it is dropped; the end is detected by the reader of that side.
    """
    if body and not writer.transport.is_closing():
        with contextlib.suppress(OSError):
            writer.write(struct.pack(">i", length) + body)
            await writer.drain()


def _identify(body: bytes, way: Way, exchanges: _Exchanges) -> Frame:
    if way is Way.REQUEST:
        api, version, correlation = struct.unpack_from(">hhi", body)
        exchanges.asked[correlation] = (api, version)
    else:
        (correlation,) = struct.unpack_from(">i", body)
        api, version = exchanges.asked.pop(correlation, (-1, -1))
    return Frame(api, version, body)


class _Cursor:
    """Reads the primitive types of the protocol, in the encodings of its flexible versions."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 0

    def number(self, format_: str) -> int:
        (value,) = struct.unpack_from(format_, self.body, self.at)
        self.at += struct.calcsize(format_)
        return int(value)

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.body[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    def skip(self, count: int) -> None:
        """Skip this many bytes.

        The count is computed first: `at += ...` would ignore the bytes that reading the count has passed.
        """
        self.at += count

    def text(self) -> None:
        """Skip a text with its length, or null."""
        self.skip(max(self.varint() - 1, 0))

    def numbers(self) -> None:
        """Skip an array of numbers of 4 bytes."""
        self.skip(4 * max(self.varint() - 1, 0))

    def tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.skip(self.varint())


def _with_frozen_watermarks(frame: Frame, frozen: dict[tuple[bytes, int], int]) -> bytes:
    """A Fetch answer in which no partition reaches beyond its frozen high watermark. Versions 12 and later."""
    if frame.version < 12:
        raise ValueError(f"Fetch version {frame.version} is older than this proxy knows")
    cursor, out, copied = _Cursor(frame.body), bytearray(), 0
    cursor.at = 4
    cursor.tags()
    cursor.at += 4 + 2 + 4  # throttle time, error, session
    for _ in range(cursor.varint() - 1):
        name_bytes = 16 if frame.version >= 13 else cursor.varint() - 1  # an id, in later versions
        topic = frame.body[cursor.at : cursor.at + name_bytes]
        cursor.at += name_bytes
        for _ in range(cursor.varint() - 1):
            partition = cursor.number(">i")
            cursor.at += 2
            out += frame.body[copied : cursor.at]
            high, stable = cursor.number(">q"), cursor.number(">q")
            limit = frozen.setdefault((topic, partition), high)
            out += struct.pack(">qq", min(high, limit), min(stable, limit))
            copied = cursor.at
            cursor.at += 8  # log start
            for _ in range(cursor.varint() - 1):
                cursor.at += 16
                cursor.tags()
            cursor.at += 4  # preferred replica
            out += frame.body[copied : cursor.at]
            records_bytes = cursor.varint() - 1
            records = frame.body[cursor.at : cursor.at + max(records_bytes, 0)]
            cursor.at += max(records_bytes, 0)
            kept = _batches_before(records, limit)
            out += _varint(len(kept) + 1) + kept
            copied = cursor.at
            cursor.tags()
        cursor.tags()
    return bytes(out + frame.body[copied:])


def _with_changed_records(frame: Frame, change: Callable[[str, bytes], tuple[bytes, bool] | None]) -> tuple[bytes, int]:
    """A Fetch answer whose records are changed, and the number of changed partitions. Versions 4 to 11, which aiokafka uses;
    others stay as they are."""
    if not 4 <= frame.version <= 11:
        return frame.body, 0
    cursor, out, copied, changed = _Cursor(frame.body), bytearray(), 0, 0
    cursor.at = 4 + 4 + (2 + 4 if frame.version >= 7 else 0)  # correlation, throttle time, error, session
    for _ in range(cursor.number(">i")):
        name_bytes = cursor.number(">h")
        topic = frame.body[cursor.at : cursor.at + name_bytes].decode()
        cursor.at += name_bytes
        for _ in range(cursor.number(">i")):
            cursor.at += 4 + 2 + 8  # partition, error, high watermark
            stable_at = cursor.at
            cursor.at += 8 + (8 if frame.version >= 5 else 0)  # stable offset, log start
            aborted = max(cursor.number(">i"), 0)
            cursor.at += 16 * aborted
            cursor.at += 4 if frame.version >= 11 else 0  # preferred replica
            size_at = cursor.at
            size = max(cursor.number(">i"), 0)
            records = frame.body[cursor.at : cursor.at + size]
            cursor.at += size
            found = change(topic, records)
            if found is None:
                continue
            new, hides_stable = found
            stable = struct.pack(">q", -1) if hides_stable else frame.body[stable_at : stable_at + 8]
            out += frame.body[copied:stable_at] + stable + frame.body[stable_at + 8 : size_at]
            out += struct.pack(">i", len(new)) + new
            copied, changed = cursor.at, changed + 1
    return bytes(out + frame.body[copied:]), changed


def _without_replicas_in_sync(frame: Frame) -> bytes:
    """A Metadata answer in which each partition's list of in-sync replicas is empty. Versions 10 to 13, which librdkafka uses;
    others stay as they are."""
    if not 10 <= frame.version <= 13:
        return frame.body
    cursor, out, copied = _Cursor(frame.body), bytearray(), 0
    cursor.at = 4
    cursor.tags()
    cursor.skip(4)  # throttle time
    for _ in range(cursor.varint() - 1):
        cursor.skip(4)  # node
        cursor.text()  # host
        cursor.skip(4)  # port
        cursor.text()  # rack
        cursor.tags()
    cursor.text()  # cluster
    cursor.skip(4)  # controller
    for _ in range(cursor.varint() - 1):
        cursor.skip(2)  # error
        cursor.text()  # name
        cursor.skip(16 + 1)  # id, is internal
        for _ in range(cursor.varint() - 1):
            cursor.skip(2 + 4 + 4 + 4)  # error, partition, leader, epoch of the leader
            cursor.numbers()  # replicas
            in_sync_at = cursor.at
            cursor.numbers()
            out += frame.body[copied:in_sync_at] + _varint(1)
            copied = cursor.at
            cursor.numbers()  # replicas that are offline
            cursor.tags()
        cursor.skip(4)  # rights
        cursor.tags()
    return bytes(out + frame.body[copied:])


def _bounds(records: bytes) -> list[tuple[int, int]]:
    """Begin and end of each whole batch."""
    found, at = [], 0
    while at + 61 <= len(records):
        (length,) = struct.unpack_from(">i", records, at + 8)
        if at + 12 + length > len(records):
            break
        found.append((at, at + 12 + length))
        at += 12 + length
    return found


def _batches_before(records: bytes, offset: int) -> bytes:
    """The record batches that lie wholly before the offset. A batch: base offset, length, ..., last offset's distance."""
    at = 0
    while at + 61 <= len(records):
        base, length = struct.unpack_from(">qi", records, at)
        (last,) = struct.unpack_from(">i", records, at + 23)
        if base + last >= offset:
            break
        at += 12 + length
    return records[:at]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
