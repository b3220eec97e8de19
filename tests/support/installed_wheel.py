"""The wheel of this checkout in an empty environment, with packages at their locked versions.

The packages are linked from the environment of the tests, which pip has filled from the lock file. So no test needs a registry.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.waiting import stretched

ROOT = Path(__file__).parents[2]


def build_wheel() -> Path:
    """Build the wheel as a release does, with `make wheel`."""
    command = ["make", "--no-print-directory", "wheel", f"VENV={sys.prefix}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=stretched(240))
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (ROOT / "build/wheel").glob("*.whl")
    return wheel


def locked_packages() -> set[str]:
    """Return the packages that the lock file installs on this machine. The environment of the tests has the same versions."""
    found = set()
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines():
        if not line or line[0] in "# ":
            continue
        one = Requirement(line.removesuffix("\\"))
        if one.marker is None or one.marker.evaluate():
            assert distribution(one.name).version in one.specifier, f"make setup: {one}"
            found.add(canonicalize_name(one.name))
    return found


def packages_without_extras() -> set[str]:
    """Return the packages that the wheel requires without any extra, and the packages that these require."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: set[tuple[str, str]] = set()
    pending = _needs(project["dependencies"], "")
    while pending:
        name, extra = package = pending.pop()
        if package not in found:
            found.add(package)
            pending += _needs(distribution(name).requires or (), extra)
    return {name for name, _ in found}


def _needs(requirements: Iterable[str], extra: str) -> list[tuple[str, str]]:
    """Return the required packages, each with "" and with each of its required extras."""
    wanted = [
        one for one in map(Requirement, requirements) if one.marker is None or one.marker.evaluate({"extra": extra})
    ]
    return [(canonicalize_name(one.name), own) for one in wanted for own in ("", *one.extras)]


class InstalledWheel:
    """An environment with the wheel, these packages, and nothing else. Its commands run in an empty directory."""

    def __init__(self, directory: Path, wheel: Path, packages: Iterable[str]) -> None:
        self.prefix = directory / "environment"
        self.work = directory / "work"
        self.work.mkdir(parents=True)
        venv.create(self.prefix, symlinks=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.site = self.prefix / "lib" / version / "site-packages"
        for name in packages:
            _link(distribution(name), self.site)
        install = [sys.executable, "-m", "pip", "--python", str(self.prefix / "bin/python"), "install"]
        install += ["--quiet", "--no-index", "--no-deps", str(wheel)]
        subprocess.run(install, check=True, timeout=stretched(120), cwd=self.work)

    def command(self, *arguments: object) -> list[str]:
        return [str(self.prefix / "bin/strandline"), *map(str, arguments)]

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a shell that has no settings of Strandline, and no path to the checkout."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("STRANDLINE_", "PYTHON"))}
        own |= {"PATH": f"{self.prefix / 'bin'}:{os.environ['PATH']}", "VIRTUAL_ENV": str(self.prefix)}
        return own | {name: value for name, value in os.environ.items() if name == "STRANDLINE_CACHE_DIR"} | more

    def run(self, *arguments: object, limit_s: float = 120, **more: str) -> subprocess.CompletedProcess[str]:
        """Run the command line. The caller reads the exit code."""
        return self._run(self.command(*arguments), limit_s, more)

    def python(self, *arguments: object, limit_s: float = 120, **more: str) -> subprocess.CompletedProcess[str]:
        return self._run([str(self.prefix / "bin/python"), *map(str, arguments)], limit_s, more)

    def _run(self, command: list[str], limit_s: float, more: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.work,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            check=False,
            timeout=stretched(limit_s),
        )


def _link(package: Distribution, site: Path) -> None:
    """Link the modules and the metadata of a package. Its commands aren't needed."""
    source = Path(sysconfig.get_path("purelib"))
    for file in package.files or ():
        if ".." in file.parts or file.suffix == ".pyc":
            continue
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / file, target)
        except OSError:  # another file system
            shutil.copyfile(source / file, target)
