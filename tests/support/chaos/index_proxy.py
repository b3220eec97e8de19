"""A proxy before Elasticsearch: it loses answers to bulk requests that are carried out, refuses some of their items, is cut."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
from typing import Any, BinaryIO

from tests.support.chaos.tcp_proxy import TcpProxy

_BULK = "/_bulk"
_OF_THE_CONNECTION = frozenset({"content-length", "transfer-encoding", "connection", "accept-encoding"})
REFUSALS = ((429, "es_rejected_execution_exception"), (503, "unavailable_shards_exception"))
"""What Elasticsearch says of an item when a queue is full, or a shard has no copy that takes it."""


class IndexProxy(TcpProxy):
    """Passes every request on, until something is to go wrong. Reads HTTP, so that it can part the items of a bulk request."""

    def __init__(self, index_port: int) -> None:
        super().__init__(index_port)
        self._to_lose = 0
        self._refused_share = 0.0
        self._chance = random.Random(0)
        self._counts = threading.Lock()
        self.lost = 0
        """Answers to bulk requests that were lost, in all."""
        self.items_refused = 0

    def lose_answers(self, count: int) -> None:
        """Cut the connection instead of passing on each of the next `count` answers to a bulk request."""
        with self._counts:
            self._to_lose = count

    def refuse_items(self, share: float, chance: random.Random) -> None:
        """From now on answer this share of the items of bulk requests as a store does that is busy, and don't pass them on;
        0: none."""
        with self._counts:
            self._refused_share, self._chance = share, chance

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        index = http.client.HTTPConnection("127.0.0.1", self.server_port)
        index.sock, index.auto_open = server, 0
        with contextlib.suppress(OSError, http.client.HTTPException), client.makefile("rb") as requests:
            while line := requests.readline().decode("latin-1"):
                method, path, _ = line.split(" ", 2)
                headers = http.client.parse_headers(requests)
                body = _body(requests, headers)
                if path.startswith(_BULK):
                    status, told, answer = self._bulk(index, method, path, headers, body)
                    if self._loses():
                        return
                else:
                    status, told, answer = _ask(index, method, path, headers, body)
                client.sendall(_head(status, told, len(answer), method == "HEAD") + answer)

    def _bulk(
        self, index: http.client.HTTPConnection, method: str, path: str, headers: http.client.HTTPMessage, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Refuse the items that are drawn, pass the others on, and put the answers in order."""
        lines = body.split(b"\n")
        pairs = list(zip(lines[:-1:2], lines[1::2], strict=True))
        refusals = {n: refusal for n in range(len(pairs)) if (refusal := self._refusal()) is not None}
        if not refusals:
            return _ask(index, method, path, headers, body)
        passed = b"".join(b"%b\n%b\n" % pair for n, pair in enumerate(pairs) if n not in refusals)
        items: list[Any] = []
        status, told = 200, [("X-Elastic-Product", "Elasticsearch"), ("content-type", "application/json")]
        if passed:
            status, told, answer = _ask(index, method, path, headers, passed)
            if status != 200:
                return status, told, answer
            items = json.loads(answer)["items"]
        for n, (code, kind) in sorted(refusals.items()):
            items.insert(n, _refused(pairs[n][0], code, kind))
        return status, told, json.dumps({"errors": True, "took": 0, "items": items}).encode()

    def _refusal(self) -> tuple[int, str] | None:
        with self._counts:
            if self._chance.random() >= self._refused_share:
                return None
            self.items_refused += 1
            return self._chance.choice(REFUSALS)

    def _loses(self) -> bool:
        with self._counts:
            if not self._to_lose:
                return False
            self._to_lose -= 1
            self.lost += 1
            return True


def _refused(action: bytes, code: int, kind: str) -> dict[str, Any]:
    ((name, about),) = json.loads(action).items()
    error = {"type": kind, "reason": "the nemesis refuses it"}
    return {name: {"_index": about["_index"], "_id": about["_id"], "status": code, "error": error}}


def _body(requests: BinaryIO, headers: http.client.HTTPMessage) -> bytes:
    assert "transfer-encoding" not in headers, "the client sends in chunks, which this proxy doesn't read"
    length = int(headers.get("content-length", "0"))
    body = requests.read(length)
    if len(body) < length:
        raise http.client.IncompleteRead(body, length - len(body))
    return body


def _ask(
    index: http.client.HTTPConnection, method: str, path: str, headers: http.client.HTTPMessage, body: bytes
) -> tuple[int, list[tuple[str, str]], bytes]:
    index.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in headers.items():
        if name.lower() not in _OF_THE_CONNECTION:
            index.putheader(name, value)
    if body:
        index.putheader("content-length", str(len(body)))
    index.endheaders(body or None)
    answer = index.getresponse()
    return answer.status, answer.getheaders(), answer.read()


def _head(status: int, told: list[tuple[str, str]], length: int, is_head: bool) -> bytes:
    lines = [f"HTTP/1.1 {status} {http.client.responses.get(status, '')}"]
    lines += [f"{name}: {value}" for name, value in told if is_head or name.lower() not in _OF_THE_CONNECTION]
    lines += [] if is_head else [f"content-length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
