"""Elasticsearch that root starts runs as the user `nobody`, with access to its own directories.

The access is given in the first way that this system allows.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.services.embedded import as_nobody
from strandline.services.embedded.elasticsearch_server import elasticsearch_program
from tests.support.waiting import stretched

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes the user")

LOOK = """\
echo made > "$1/made" && printf said >> "$2" || exit 1
echo "uid $(id -u)"
echo "groups $(id -G)"
echo "here $(pwd)"
echo "capabilities $(sed -n 's/^Cap\\(Eff\\|Prm\\|Amb\\):.//p' /proc/self/status | sort -u)"
test -r "$3" && echo "reads yes" || echo "reads no"
"""
NONE, DAC_READ_SEARCH = f"{0:016x}", f"{1 << 2:016x}"


class Place:
    """A directory of root's, with entries of the user `nobody` and of other users."""

    def __init__(self, top: Path) -> None:
        self.top, self.own, self.log, self.secret = top, top / "own", top / "log", top / "secret"
        self.own.mkdir()
        self.secret.mkdir(mode=0o700)
        for path in (self.log, self.secret / "file"):
            path.touch(mode=0o600)
        for path in (self.own, self.log):
            shutil.chown(path, "nobody")

    def look(self, *before: str) -> dict[str, str]:
        """Return what the program is and sees. `before`: the program that starts it."""
        paths = [str(self.own), str(self.log)]
        program = ["/bin/sh", "-c", LOOK, "look", *paths, str(self.secret / "file")]
        command = [*before, sys.executable, "-I", as_nobody.__file__, *paths, "--", *program]
        ran = subprocess.run(command, cwd=self.own, capture_output=True, text=True, check=True, timeout=stretched(60))
        found = dict(line.split(" ", 1) for line in ran.stdout.splitlines())
        nobody = pwd.getpwnam("nobody")
        assert (found["uid"], found["groups"]) == (str(nobody.pw_uid), str(nobody.pw_gid))
        assert found["here"] == str(self.own)
        made = (self.own / "made").stat()
        assert made.st_uid == nobody.pw_uid and self.log.read_text() == "said", "it has written to the real ones"
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
    found = place.look("setpriv", "--groups=0,4", "--bounding-set=-sys_admin")
    assert (found["capabilities"], found["reads"]) == (NONE, "no")


@pytest.mark.guarantee(
    "G498",
    "Started by root, the embedded Elasticsearch runs as the user nobody without any capability if root may create a "
    "mount namespace. Otherwise it keeps one capability, for reading, and its log says so.",
    promise="a-stack-keeps-its-data",
)
def test_below_a_closed_directory_it_gets_at_its_own_without_a_capability(place: Place) -> None:
    needs_namespaces()
    found = place.look("setpriv", "--groups=0,4")
    assert (found["capabilities"], found["reads"]) == (NONE, "no")
    assert stat.S_IMODE(place.top.stat().st_mode) == 0o700, "for everybody else all is as before"
    assert str(place.top) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.guarantee("G498")
def test_a_root_who_may_make_no_mount_namespace_keeps_the_capability_to_enter_directories(place: Place) -> None:
    found = place.look("setpriv", "--groups=0,4", "--bounding-set=-sys_admin")
    assert found["capabilities"] == DAC_READ_SEARCH


def test_a_directory_behind_a_link_is_reached_by_both_its_names(place: Place) -> None:
    needs_namespaces()
    with tempfile.TemporaryDirectory(prefix="strandline-test-", dir="/tmp") as other:
        real = Path(other) / "real"
        place.own.rename(real)
        place.own.symlink_to(real)
        shutil.chown(real, "nobody")
        command = [sys.executable, "-I", as_nobody.__file__, str(place.own), "--"]
        ran = subprocess.run(
            [*command, "/bin/sh", "-c", f"touch {place.own}/a && touch {real}/b && grep CapEff /proc/self/status"],
            capture_output=True, text=True, check=True, timeout=stretched(60),
        )  # fmt: skip
        assert int(ran.stdout.split()[1], 16) == 0 and {path.name for path in real.iterdir()} == {"a", "b"}


@pytest.mark.guarantee("G498")
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
