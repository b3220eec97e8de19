"""How root starts Elasticsearch: as nobody, who gets at its own directories in the first way that this system allows."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.services.embedded import as_nobody
from strandline.services.embedded.elasticsearch_server import elasticsearch_program

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes the user")

LOOK = """\
import json, os, sys
own, log, secret = sys.argv[1:]
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
open(os.path.join(own, "made"), "w").write("made")
open(log, "a").write("said")
found = {"uid": os.getuid(), "groups": os.getgroups(), "here": os.getcwd(), "reads": os.access(secret, os.R_OK)}
found |= {"capabilities": int(status["CapEff"], 16) | int(status["CapPrm"], 16) | int(status["CapAmb"], 16)}
print(json.dumps(found))
"""
DAC_READ_SEARCH = 1 << 2


class Place:
    """A directory of root's, with what is nobody's in it and what is not."""

    def __init__(self, top: Path) -> None:
        self.top, self.own, self.log, self.secret = top, top / "own", top / "log", top / "secret"
        self.own.mkdir()
        self.secret.mkdir(mode=0o700)
        for path in (self.log, self.secret / "file"):
            path.touch(mode=0o600)
        for path in (self.own, self.log):
            shutil.chown(path, "nobody")

    def look(self, *before: str) -> dict[str, Any]:
        """What the program is and sees. `before`: what starts it."""
        python = [sys.executable, "-I", as_nobody.__file__]
        paths = [str(self.own), str(self.log)]
        program = [sys.executable, "-I", "-c", LOOK, *paths, str(self.secret / "file")]
        command = [*before, *python, *paths, sys.prefix, sys.base_prefix, "--", *program]
        ran = subprocess.run(command, cwd=self.own, capture_output=True, text=True, check=True, timeout=60)
        found: dict[str, Any] = json.loads(ran.stdout)
        assert found["uid"] == os.stat(self.own).st_uid and found["groups"] in ([], [found["uid"]])
        assert found["here"] == str(self.own)
        made = (self.own / "made").stat()
        assert made.st_uid == found["uid"] and self.log.read_text() == "said", "it has written to the real ones"
        return found


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="strandline-test-", dir="/tmp") as directory:
        yield Place(Path(directory))


def needs_namespaces() -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this root may make no mount namespace")


def test_where_nobody_gets_in_anyway_nothing_else_is_done(place: Place) -> None:
    place.top.chmod(0o755)
    for above in (Path(sys.prefix), *Path(sys.prefix).parents):
        if not above.stat().st_mode & 0o001:
            pytest.skip(f"the Python of this test is below {above}, which is closed")
    found = place.look()
    assert found["capabilities"] == 0 and not found["reads"]


def test_below_a_closed_directory_it_gets_at_its_own_without_a_capability(place: Place) -> None:
    needs_namespaces()
    found = place.look()
    assert found["capabilities"] == 0 and not found["reads"]
    assert stat.S_IMODE(place.top.stat().st_mode) == 0o700, "for everybody else all is as before"
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(place.top) not in mounts


def test_a_root_who_may_make_no_mount_namespace_keeps_the_capability_to_enter_directories(place: Place) -> None:
    found = place.look("setpriv", "--bounding-set=-sys_admin")
    assert found["capabilities"] == DAC_READ_SEARCH


def test_a_directory_behind_a_link_is_reached_by_both_its_names(place: Place) -> None:
    needs_namespaces()
    with tempfile.TemporaryDirectory(prefix="strandline-test-", dir="/tmp") as other:
        real = Path(other) / "real"
        place.own.rename(real)
        place.own.symlink_to(real)
        shutil.chown(real, "nobody")
        command = [sys.executable, "-I", as_nobody.__file__, str(place.own), sys.prefix, sys.base_prefix, "--"]
        ran = subprocess.run(
            [*command, "/bin/sh", "-c", f"touch {place.own}/a && touch {real}/b && grep CapEff /proc/self/status"],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert int(ran.stdout.split()[1], 16) == 0 and {path.name for path in real.iterdir()} == {"a", "b"}


def test_elasticsearch_is_started_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "config").mkdir(parents=True)
    for name in ("roles.yml", "role_mapping.yml", "users", "users_roles"):
        (home / "config" / name).touch()
    log = tmp_path / "elasticsearch.log"
    program = elasticsearch_program(home, Path("/jdk/bin/java"), tmp_path / "data", log, 1, 2)
    end = list(program.arguments).index("--")
    assert program.arguments[:end] == [
        sys.executable, "-I", as_nobody.__file__, str(tmp_path / "data"), str(log), str(home), "/jdk",
    ]  # fmt: skip
