"""The image of our own: its Dockerfile pleases the linter, and its bill of materials is whole."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def test_the_linter_has_nothing_to_say() -> None:
    ran = subprocess.run(
        [BIN / "hadolint", "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "")


@pytest.mark.long
def test_the_bill_of_materials_names_every_package_of_the_image_with_its_hashes(tmp_path: Path) -> None:
    made = tmp_path / "sbom.json"
    subprocess.run(["make", "-s", "sbom", f"SBOM={made}"], cwd=ROOT, capture_output=True, check=True)
    bill = json.loads(made.read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "strandline")
    named = {(one["name"].lower().replace("_", "-"), one["version"]) for one in bill["components"]}
    locked = re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert named == {(name.lower().replace("_", "-"), version) for name, version in locked}
    assert all(reference["hashes"] for one in bill["components"] for reference in one["externalReferences"])
