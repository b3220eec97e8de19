"""The import into Kibana, against the contract of its API as published; no Kibana has confirmed it here."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from strandline.results.charts.kibana_client import KibanaRefused, KibanaUnavailable, import_objects
from tests.support.ports import free_ports

OBJECTS = [
    {"type": "index-pattern", "id": "one", "attributes": {"title": "ä"}, "references": []},
    {"type": "dashboard", "id": "two", "attributes": {"title": "d"}, "references": []},
]


@contextmanager
def kibana(status: int, answer: dict[str, Any] | str) -> Iterator[tuple[str, list[tuple[str, dict[str, str], bytes]]]]:
    """A server that answers every request so; yields its address and the list of what was asked."""
    asked: list[tuple[str, dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            text = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(("space", "path"), [("", ""), ("wind", "/s/wind")])
def test_the_objects_go_in_one_file_and_replace_older_ones(space: str, path: str) -> None:
    with kibana(200, {"success": True, "successCount": 2}) as (url, asked):
        assert import_objects(url + "/", OBJECTS, space=space) == 2
    ((asked_path, headers, body),) = asked
    assert asked_path == f"{path}/api/saved_objects/_import?overwrite=true"
    assert headers["kbn-xsrf"]
    (part,) = message_from_bytes(
        b"content-type: " + headers["content-type"].encode() + b"\r\n\r\n" + body
    ).get_payload()  # type: ignore[misc]
    assert part.get_param("name", header="content-disposition") == "file"  # type: ignore[union-attr]
    assert str(part.get_filename()).endswith(".ndjson")  # type: ignore[union-attr]
    lines = part.get_payload(decode=True).decode().splitlines()  # type: ignore[union-attr]
    assert [json.loads(line) for line in lines] == OBJECTS


def test_an_answer_of_200_may_be_a_refusal() -> None:
    error = {"type": "dashboard", "id": "two", "error": {"type": "missing_references", "references": []}}
    with kibana(200, {"success": False, "successCount": 1, "errors": [error]}) as (url, _):
        with pytest.raises(
            KibanaRefused, match=r"accepted 1 of 2 objects; refused: dashboard two \(missing_references\)"
        ):
            import_objects(url, OBJECTS)


@pytest.mark.parametrize(
    ("status", "answer", "error", "said"),
    [
        (503, "Kibana server is not ready yet", KibanaUnavailable, "is not ready"),
        (400, {"statusCode": 400, "message": "Invalid file extension"}, KibanaRefused, "Invalid file extension"),
        (401, "Unauthorized", KibanaRefused, "status 401"),
    ],
)
def test_another_answer_is_said(status: int, answer: dict[str, Any] | str, error: type[Exception], said: str) -> None:
    with kibana(status, answer) as (url, _), pytest.raises(error, match=said):
        import_objects(url, OBJECTS)


def test_no_kibana_is_said() -> None:
    with pytest.raises(KibanaUnavailable, match=r"no Kibana answers at http://127\.0\.0\.1:"):
        import_objects(f"http://127.0.0.1:{free_ports(1)[0]}", OBJECTS)
