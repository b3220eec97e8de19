"""`strandline.Client` against a real platform: the programs of docs/python.md, unchanged and in their order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_control_api import Control, control  # noqa: F401  (a fixture)
from tests.support.gateways import GatewayProcess
from tests.support.page_blocks import blocks_of

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def gateway(control: Control, kafka: str, tmp_path: Path) -> Iterator[GatewayProcess]:  # noqa: F811
    with closing(GatewayProcess("http", kafka, tmp_path)) as gateway:
        yield gateway


@pytest.mark.guarantee("G435")
@pytest.mark.long
def test_the_programs_of_the_python_page_do_what_they_say(
    control: Control,  # noqa: F811
    gateway: GatewayProcess,
    capsys: pytest.CaptureFixture[str],
) -> None:
    control.start_and_wait()
    names: dict[str, Any] = {"url": control.url, "ingest_url": f"http://127.0.0.1:{gateway.health_port}", "token": None}
    said: list[str] = []
    for program in blocks_of("python.md", "python"):
        patient = program.replace("=120", "=280")  # of a busy machine
        exec(compile(patient, "python.md", "exec"), names)
        said.append(capsys.readouterr().out)
    *_, applied, sent, ended = said
    assert applied == "stream turbines created\npipeline turbine-health created\n"
    assert sent == "91 []\n"
    state, letters, outcomes, sentence = ended.splitlines()
    assert state.startswith("drained {'per_minute': ")
    assert letters.startswith("[('decode', ") and letters.count("decode") == 1
    assert outcomes == "{'decode': 1}"
    assert sentence
