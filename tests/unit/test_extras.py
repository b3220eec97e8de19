"""Extras: a missing package names its extra, the lock files contain all extras, and the metadata has ranges."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from strandline.core.extras import EXTRAS
from tests.support.waiting import stretched

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL: dict[str, list[str]] = PROJECT["optional-dependencies"]
LOCKED = {
    canonicalize_name(name): version
    for name, version in re.findall(
        r"^([A-Za-z0-9._-]+)(?:\[\w+\])?==([^ ;\\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE
    )
}


def requirements() -> list[Requirement]:
    own = [one for extra, several in OPTIONAL.items() if extra != "dev" for one in several if "strandline[" not in one]
    return [Requirement(one) for one in (*PROJECT["dependencies"], *own)]


def test_requirements_are_ranges_and_the_lock_file_is_within_them() -> None:
    for one in requirements():
        assert one.specifier and not any(clause.operator == "==" for clause in one.specifier), str(one)
        assert one.specifier.contains(LOCKED[canonicalize_name(one.name)]), (
            f"{one}: {LOCKED[canonicalize_name(one.name)]}"
        )


def test_each_extra_is_in_all_of_them() -> None:
    (everything,) = OPTIONAL["all"]
    assert Requirement(everything).extras == OPTIONAL.keys() - {"all", "dev"}
    assert set(EXTRAS.values()) <= OPTIONAL.keys()
    command = re.search(r"^lock:.*?(?=^clean:)", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert command is not None
    for extra in EXTRAS.values():
        assert command[0].count(f"--extra {extra} ") == 2, "both lock files contain it"


@pytest.mark.parametrize("module", EXTRAS)
def test_a_missing_package_names_its_extra_and_the_command(module: str) -> None:
    package = module.partition(".")[0]
    lines = [
        "import sys, strandline.core",
        "class Hidden:",
        "    def __init__(self, finder): self.finder = finder",
        "    def find_spec(self, name, path=None, target=None):",
        f"        if name != {package!r} and not name.startswith({package + '.'!r}):",
        "            return self.finder.find_spec(name, path, target)",
        "sys.meta_path[:-1] = [Hidden(one) for one in sys.meta_path[:-1]]",
        "from strandline.core.errors import StrandlineError",
        "try:",
        f"    import {module}",
        "except StrandlineError as error:",
        "    print(error)",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=stretched(60), check=True
    )
    assert done.stdout.endswith(f"pip install 'strandline[{EXTRAS[module]}]'\n"), done
