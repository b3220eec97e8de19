"""The REST API against what schemathesis makes of its own description, with tokens: no answer is a fault of ours (500 and up),
and each is one that the description knows.

`python -m tests.unit.test_api_fuzz SECONDS` runs it for as long as one likes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from strandline.access.doorkeeper import Doorkeeper
from strandline.ledger.ledger import Ledger
from tests.support.control import BOTH, Api, ObedientSupervisor, serving
from tests.support.tokens import tokens_of_each_kind

SECONDS = 120
CONFIG = """\
[generation]
allow-x00 = true

# A document is YAML, which the description can only call a text, and a token needs a role or a stream: whether these are right
# is for the answer to say. All other checks are on everywhere.
[[operations]]
include-path-regex = "^/v1/(documents|documents/plan|pipelines/check|tokens)$"
checks.positive_data_acceptance.enabled = false
checks.negative_data_rejection.enabled = false

# It would revoke the token that it comes with, as soon as it has read its name in the list.
[[operations]]
include-path = "/v1/tokens/{name}/revoke"
enabled = false
"""


def fuzz(directory: Path, seconds: int) -> tuple[str, list[dict[str, Any]]]:
    """What schemathesis prints, and the answers that it counted, by operation."""
    ledger = Ledger.open(f"sqlite:///{directory / 'ledger.sqlite'}")
    door = Doorkeeper(ledger, look_s=1, kept_s=10_000)
    api = Api(ledger, ObedientSupervisor(ledger), doorkeeper=door)
    token = f"Authorization: Bearer {tokens_of_each_kind(ledger, 'readings')['admin']}"
    api.ask(
        "POST",
        "/v1/documents",
        content=BOTH,
        headers={"Content-Type": "application/yaml", "Authorization": token.partition(": ")[2]},
    )
    config = directory / "schemathesis.toml"
    config.write_text(CONFIG)
    with serving(api.app) as url:
        command = [Path(sys.executable).with_name("st"), "--config-file", config, "run", f"{url}/openapi.json"]
        command += ["--header", token, "--max-time", str(seconds), "--continue-on-failure", "--no-color"]
        command += ["--report", "ndjson", "--report-dir", directory]
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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        print(fuzz(Path(made), int(sys.argv[1]))[0])
