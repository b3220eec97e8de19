"""RefusingIndex: an Elasticsearch with documents in memory and configurable faults."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Item = dict[str, Any]
_OF_A_STRANGER = b"null"


class Fault(Enum):
    """Fault of a complete bulk request."""

    LOSE_REQUEST = "the connection closes, nothing is stored"
    LOSE_ANSWER = "everything is stored, then the connection closes"
    CUT_ANSWER = "everything is stored, the answer is half a JSON text"
    OMIT_ITEM = "everything is stored, the answer lacks its last item"
    REDIRECT = "everything is stored, in another index"
    OVERLOADED = "429"
    UNAVAILABLE = "503"
    FORBIDDEN = "403"
    STRANGER = "200 from something that is not Elasticsearch"


@dataclass
class RefusingIndex:
    """Serves `_bulk` (create, or index with an external version) and `_mget` on loopback between `start` and `stop`.

    Counts the requests.
    """

    bulk_bytes_max: int = 1 << 30
    """A larger bulk request is answered with 413."""
    faults: list[Fault] = field(default_factory=list)
    """One for each bulk request to come; then none."""
    read_statuses: list[int] = field(default_factory=list)
    """One for each `_mget` to come; then 200."""
    item_errors: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    """Id -> (status, error type) for each attempt to come; then it is taken."""
    documents: dict[tuple[str, str], Item] = field(default_factory=dict)
    """(index, id) -> source."""
    versions: dict[tuple[str, str], int] = field(default_factory=dict)
    """(index, id) -> version, of those that have one."""
    sent: list[list[str]] = field(default_factory=list)
    """The ids of each bulk request that arrived."""
    indices: dict[str, Any] | None = None
    """Index -> as it was made. None: every index is there."""
    read_only: set[str] = field(default_factory=set)
    """Indices whose mapping and aliases can't be changed."""
    templates: dict[str, Any] = field(default_factory=dict)
    """Path -> as it was put."""
    asked: list[str] = field(default_factory=list)
    """Method and path of each request that is neither `_bulk` nor `_mget`."""

    def __enter__(self) -> Self:
        """Begin to answer."""
        index = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                path = self.path.partition("?")[0]
                if path == "/_bulk":
                    assert "require_alias=true" in self.path
                    status, answer = index.bulk(body)
                else:
                    status, answer = index.read(body) if path == "/_mget" else index.set_up(self.command, path, body)
                if answer is None:
                    self.close_connection = True
                    return
                self.send_response(status)
                if answer != _OF_A_STRANGER:
                    self.send_header("X-Elastic-Product", "Elasticsearch")
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_PUT = do_POST = answer  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def bulk(self, body: bytes) -> tuple[int, bytes | None]:
        """Return the status and the body of the answer; no body means that the connection closes without one."""
        if len(body) > self.bulk_bytes_max:
            return 413, _error("too_large")
        lines = body.decode().split("\n")
        assert lines.pop() == "", "a bulk body ends with a newline"
        verbs, actions = zip(*(next(iter(json.loads(line).items())) for line in lines[::2]), strict=True)
        self.sent.append([action["_id"] for action in actions])
        fault = self.faults.pop(0) if self.faults else None
        match fault:
            case Fault.LOSE_REQUEST:
                return 0, None
            case Fault.OVERLOADED | Fault.UNAVAILABLE | Fault.FORBIDDEN:
                return int(fault.value), _error("told_to_fail")
            case Fault.STRANGER:
                return 200, _OF_A_STRANGER
        items = [
            {verb: self._create(action, json.loads(source), fault)}
            for verb, action, source in zip(verbs, actions, lines[1::2], strict=True)
        ]
        match fault:
            case Fault.LOSE_ANSWER:
                return 0, None
            case Fault.OMIT_ITEM:
                items.pop()
        answer = json.dumps({"items": items}, separators=(",", ":")).encode()
        return 200, answer[: len(answer) // 2] if fault is Fault.CUT_ANSWER else answer

    def _create(self, action: Item, source: Item, fault: Fault | None) -> Item:
        index, identity, version = action["_index"], action["_id"], action.get("version")
        assert (version is None) == ("version_type" not in action)
        if self.indices is not None and index.removesuffix(".write") not in self.indices:
            return {"_index": index, "_id": identity, "status": 404, "error": {"type": "index_not_found_exception"}}
        index = index.removesuffix(".write")
        item: Item = {"_index": index, "_id": identity}
        if self.item_errors[identity]:
            status, error_type = self.item_errors[identity].pop(0)
            return {**item, "status": status, "error": {"type": error_type, "reason": "set to fail"}}
        status = 200 if (index, identity) in self.documents else 201
        if status == 200 and (version is None or version <= self.versions.get((index, identity), 1)):
            return {**item, "status": 409, "error": {"type": "version_conflict_engine_exception", "reason": "taken"}}
        self.documents[index, identity] = source
        if version is not None:
            self.versions[index, identity] = version
        return {**item, "status": status, "_index": "elsewhere" if fault is Fault.REDIRECT else index}

    def set_up(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Answer the requests that a writer sends before it writes: existing indices, a template, a new index."""
        self.asked.append(f"{method} {path}")
        indices = {} if self.indices is None else self.indices
        if method == "GET" and path.startswith("/_index_template/"):
            if path not in self.templates:
                return 404, _error("resource_not_found_exception")
            found = {"name": path.rpartition("/")[2], "index_template": self.templates[path]}
            return 200, json.dumps({"index_templates": [found]}).encode()
        if method == "GET":
            return 200, json.dumps(indices).encode()
        if path.startswith("/_index_template/"):
            self.templates[path] = json.loads(body)
        elif path == "/_aliases" or path.endswith("/_mapping"):
            return self._change(path, json.loads(body))
        elif path.removeprefix("/") in indices:
            return 400, _error("resource_already_exists_exception")
        elif method == "PUT":
            indices[path.removeprefix("/")] = json.loads(body)
        return 200, b'{"acknowledged":true}'

    def _change(self, path: str, body: Any) -> tuple[int, bytes]:
        """Change the mapping of an index, or add aliases: all of them or none."""
        assert self.indices is not None
        added = [one["add"] for one in body.get("actions", [])]
        if self.read_only & {path.split("/")[1], *(one["index"] for one in added)}:
            return 403, _error("cluster_block_exception")
        if not added:
            self.indices[path.split("/")[1]]["mappings"] = body
        for one in added:
            self.indices[one["index"]]["aliases"][one["alias"]] = {}
        return 200, b'{"acknowledged":true}'

    def read(self, body: bytes) -> tuple[int, bytes | None]:
        status = self.read_statuses.pop(0) if self.read_statuses else 200
        if status != 200:
            return status, _error("told_to_fail")
        found = []
        for wanted in json.loads(body)["docs"]:
            place = wanted["_index"], wanted["_id"]
            held = {"found": True, "_source": self.documents.get(place), "_version": self.versions.get(place, 1)}
            found.append({**wanted, **held} if held["_source"] else {**wanted, "found": False})
        return 200, json.dumps({"docs": found}).encode()


def _error(error_type: str) -> bytes:
    return json.dumps({"error": {"type": error_type, "reason": "set to fail"}}).encode()
