"""The proxy of the index loses the answers that it must lose, and no request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from tests.support.chaos.index_proxy import IndexProxy


class Index(ThreadingHTTPServer):
    """Answers everything, and records the requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Index

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.asked.append(self.path)
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def index() -> Iterator[Index]:
    with Index() as index:
        thread = threading.Thread(target=index.serve_forever)
        thread.start()
        yield index
        index.shutdown()
        thread.join()


def test_answers_to_bulk_requests_are_lost_and_the_requests_are_not(index: Index) -> None:
    proxy = IndexProxy(index.server_port)
    with httpx.Client(base_url=f"http://127.0.0.1:{proxy.port}", trust_env=False) as client:
        assert client.post("/_bulk", content=b"x" * 1_000_000).status_code == 200
        proxy.lose_answers(2)
        assert client.post("/_mget", content=b"x").status_code == 200
        for _ in range(2):
            with pytest.raises(httpx.TransportError):
                client.post("/_bulk?timeout=1s", content=b"x")
        assert client.post("/_bulk", content=b"x").status_code == 200
    assert proxy.lost == 2
    assert index.asked == ["/_bulk", "/_mget", "/_bulk?timeout=1s", "/_bulk?timeout=1s", "/_bulk"]
    proxy.close()
