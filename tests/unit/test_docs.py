"""The docs and the code say the same."""

from __future__ import annotations

import re
from pathlib import Path

from strandline.core.settings import Settings
from strandline.ingest.mqtt.bridge import MqttBridgeSettings
from strandline.ingest.mqtt.server import MqttServerSettings
from strandline.ingest.sockets.tcp_gateway import TcpSettings
from strandline.ingest.sockets.udp_gateway import UdpSettings

ROOT = Path(__file__).parents[2]
SETTINGS = (Settings, MqttServerSettings, MqttBridgeSettings, UdpSettings, TcpSettings)


def test_every_setting_is_in_the_docs_and_no_other():
    text = (ROOT / "docs" / "operating.md").read_text()
    named = set(re.findall(r"^\| `STRANDLINE_([A-Z_]+)`", text, re.MULTILINE))
    settings = {name for model in SETTINGS for name in model.model_fields}
    assert named == {name.upper() for name in settings}


def test_each_guarantee_names_a_test_that_exists():
    text = (ROOT / "docs" / "guarantees.md").read_text()
    promises = re.findall(r"^\| (G\d+) \|.*$", text, re.MULTILINE)
    assert promises, "no promise found"
    assert sorted(promises) == sorted(set(promises)), "each number names one promise"
    for line in re.findall(r"^\| G\d+ \|.*$", text, re.MULTILINE):
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", line)
        assert tests, f"names no test: {line}"
        for path, name in tests:
            assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), (
                f"{path} has no {name}"
            )


def test_links_between_documents_lead_somewhere():
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for document in documents:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
