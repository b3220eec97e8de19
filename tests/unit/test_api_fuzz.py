"""The REST API against schemathesis, which generates requests from the API's own description, with tokens.

No answer has a status of 500 or more, and the description contains each.

`python -m tests.unit.test_api_fuzz REQUESTS` repeats this until REQUESTS requests are answered. It ends with 1 if any
answer had a status of 500 or more.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from strandline.access.authenticator import Authenticator
from strandline.ledger.ledger import Ledger
from tests.support.control import BOTH, Api, ObedientSupervisor, serving
from tests.support.tokens import tokens_of_each_kind
from tests.support.waiting import stretched

SECONDS = 120
ROUND_S = 600
CONFIG = """\
[generation]
allow-x00 = true

# A document is YAML, which the description can only call a string. A token needs a role or a stream, and a repair some payload.
# Only the answer can say if these are right. All other checks are on everywhere.
[[operations]]
include-path-regex = "^/v1/(documents|documents/plan|pipelines/check|pipelines/preview|tokens|jobs/{name}/dead-letters/repair)$"
checks.positive_data_acceptance.enabled = false
checks.negative_data_rejection.enabled = false

# GET of these paths is another operation, which reads the last word as the number of a dead letter.
[[operations]]
include-path-regex = "/dead-letters/(replay|repair)$"
checks.unsupported_method.enabled = false
checks.allow_header_conformance.enabled = false

# It would revoke the token that it comes with, as soon as it has read its name in the list.
[[operations]]
include-path = "/v1/tokens/{name}/revoke"
enabled = false
"""


class EmptyIndex:
    """An Elasticsearch that holds nothing, and lets everything be deleted."""

    def __init__(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            def answer(self, status: int, body: dict[str, Any]) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("x-elastic-product", "Elasticsearch")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def do_GET(self) -> None:
                self.answer(
                    404, {"error": {"type": "index_not_found_exception", "reason": "no such index"}, "status": 404}
                )

            def do_DELETE(self) -> None:
                self.answer(200, {"acknowledged": True})

            do_POST = do_PUT = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def applying(url: str, authorization: str) -> Iterator[None]:
    """Apply the documents now and again and again."""
    is_over = threading.Event()
    headers = {"Content-Type": "application/yaml", "Authorization": authorization}

    def apply() -> None:
        with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as client:
            while True:
                client.post("/v1/documents", content=BOTH)
                if is_over.wait(1):
                    return

    thread = threading.Thread(target=apply)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(stretched(60))


def fuzz(directory: Path, seconds: int, examples_max: int | None = None) -> tuple[str, list[dict[str, Any]]]:
    """Return what schemathesis prints and reports.

    The job and its stream are recreated continuously, because requests delete them.
    """
    ledger = Ledger.open(f"sqlite:///{directory / 'ledger.sqlite'}")
    door = Authenticator(ledger, look_s=1, kept_s=10_000)
    index = EmptyIndex()
    api = Api(ledger, ObedientSupervisor(ledger), authenticator=door, elasticsearch_url=index.url)
    token = f"Authorization: Bearer {tokens_of_each_kind(ledger, 'readings')['admin']}"
    config = directory / "schemathesis.toml"
    config.write_text(CONFIG)
    with serving(api.app) as url, closing(index), applying(url, token.partition(": ")[2]):
        command = [Path(sys.executable).with_name("st"), "--config-file", config, "run", f"{url}/openapi.json"]
        command += [
            "--header",
            token,
            "--max-time",
            str(seconds),
            "--request-timeout",
            "60",
            "--continue-on-failure",
            "--no-color",
        ]
        command += ["--report", "ndjson", "--report-dir", directory]
        command += ["--max-examples", str(examples_max)] if examples_max else []
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + 120, check=False, cwd=directory
        )
    door.close()
    ledger.close()
    (report,) = directory.glob("ndjson-*")
    return done.stdout + done.stderr, [json.loads(line) for line in report.read_text().splitlines()]


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 180)
def test_no_request_makes_the_api_fail(tmp_path: Path) -> None:
    output, _ = fuzz(tmp_path, SECONDS)
    assert "Failures:" not in output and "Test cases:" in output, output


def statuses(report: list[dict[str, Any]]) -> list[int]:
    """Return the status of every answer."""
    recorders = [event["ScenarioFinished"]["recorder"] for event in report if "ScenarioFinished" in event]
    made = [one for recorder in recorders for one in recorder.get("interactions", {}).values()]
    return [one["response"]["status_code"] for one in made if one.get("response")]


def main(requests: int) -> int:
    """Round after round, each with a ledger of its own and other requests."""
    found: Counter[int] = Counter()
    while found.total() < requests:
        with tempfile.TemporaryDirectory() as made:
            output, report = fuzz(Path(made), ROUND_S, examples_max=1_000)
            answered = statuses(report)
            if not answered:
                print(output, "not one request was made", sep="\n")
                return 1
            found.update(answered)
            faults = sum(count for status, count in found.items() if status >= 500)
            print(output.partition("= SUMMARY =")[2])
            print(
                f"{found.total()} requests, {faults} answers >= 500; by status: {dict(sorted(found.items()))}",
                flush=True,
            )
            if faults:
                print(output, flush=True)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
