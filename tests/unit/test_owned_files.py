"""Files that a stack writes into the directory of Elasticsearch, whose user can put links there.

No link is followed.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from strandline.core.errors import StackError
from strandline.services.embedded.elasticsearch_server import PID_FILE, elasticsearch_program, find_server
from strandline.services.processes.owned_files import give_tree

CONFIGURATION = (
    "elasticsearch.yml",
    "jvm.options",
    "log4j2.properties",
    "roles.yml",
    "role_mapping.yml",
    "users",
    "users_roles",
)
NOBODY = pwd.getpwnam("nobody")
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes the owner of a file")


class Place:
    """The data directory of Elasticsearch after its first start, and a directory outside of it."""

    def __init__(self, top: Path) -> None:
        self.home, self.data_dir, self.outside = top / "home", top / "elasticsearch", top / "outside"
        (self.home / "config").mkdir(parents=True)
        self.outside.mkdir()
        for name in ("roles.yml", "role_mapping.yml", "users", "users_roles"):
            (self.home / "config" / name).touch()
        self.start()
        self.config = self.data_dir / "config"

    def start(self, password: str | None = None) -> None:
        log = self.data_dir.parent / "elasticsearch.log"
        elasticsearch_program(self.home, Path("/jdk/bin/java"), self.data_dir, log, 1, 2, password)

    def victim(self, name: str) -> Path:
        """A file outside, which belongs to this user."""
        path = self.outside / name
        path.write_text("important")
        return path

    def require_untouched(self) -> None:
        for path in (self.outside, *self.outside.rglob("*")):
            assert path.stat().st_uid == os.geteuid(), f"{path} has another owner"
            assert path.is_dir() or path.read_text() == "important", path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.guarantee(
    "G793",
    "A stack that root starts writes through no link and changes the owner of no file outside the directory of its "
    "Elasticsearch. A pid that the user of this directory writes makes root stop no other process.",
    promise="a-stack-keeps-its-data",
)
@pytest.mark.parametrize("name", CONFIGURATION)
def test_a_start_overwrites_no_file_behind_a_link_in_the_configuration(place: Place, name: str) -> None:
    file = place.config / name
    file.unlink()
    file.symlink_to(place.victim(name))
    place.start("password-of-a-stack-0123456789")
    place.require_untouched()
    assert file.is_file() and not file.is_symlink()


@pytest.mark.guarantee("G793")
@pytest.mark.parametrize("name", ["config", "config/jvm.options.d", "config/transport", "tmp"])
def test_a_start_writes_and_deletes_nothing_in_a_directory_behind_a_link(place: Place, name: str) -> None:
    for victim in (*CONFIGURATION, "ca.pem", "ca-key.pem", "server.pem", "server-key.pem"):
        place.victim(victim)
    directory = place.data_dir / name
    if directory.exists():
        directory.rename(place.data_dir.parent / "moved")
    directory.symlink_to(place.outside)
    place.start("password-of-a-stack-0123456789")
    place.require_untouched()
    assert len(list(place.outside.iterdir())) == len(CONFIGURATION) + 4, "no file is new, none is gone"
    assert not directory.is_symlink()


@pytest.mark.guarantee("G793")
@pytest.mark.parametrize("name", ["data", "logs"])
def test_a_start_refuses_a_link_in_place_of_data_or_logs(place: Place, name: str) -> None:
    (place.data_dir / name).rmdir()
    (place.data_dir / name).symlink_to(place.outside)
    with pytest.raises(StackError, match=f"{name} is not a directory, and links aren't followed there; stop the stack"):
        place.start()
    place.require_untouched()


@only_root
def test_the_user_of_the_server_can_replace_no_directory_of_it(place: Place) -> None:
    assert (place.data_dir.stat().st_uid, place.data_dir.stat().st_mode & 0o777) == (0, 0o755)
    assert {path.name: path.stat().st_uid for path in place.data_dir.iterdir()} == dict.fromkeys(
        ("config", "data", "logs", "tmp"), NOBODY.pw_uid
    )
    assert {path.stat().st_uid for path in place.config.rglob("*")} == {NOBODY.pw_uid}
    os.chown(place.data_dir, NOBODY.pw_uid, NOBODY.pw_gid)  # by another program
    place.start()
    assert place.data_dir.stat().st_uid == 0


@pytest.mark.guarantee("G793")
@only_root
def test_no_file_outside_gets_another_owner(place: Place) -> None:
    """Neither behind a link nor under a second name."""
    within = place.data_dir / "data" / "index"
    within.mkdir()
    (within / "link").symlink_to(place.victim("linked"))
    (within / "directory").symlink_to(place.outside)
    (within / "file").write_text("")
    give_tree(place.data_dir / "data", NOBODY.pw_uid, NOBODY.pw_gid)
    place.require_untouched()
    assert {(within / name).lstat().st_uid for name in (".", "file")} == {NOBODY.pw_uid}
    (within / "hard").hardlink_to(place.victim("hard"))
    with pytest.raises(StackError, match=r"hard below .* belongs to user 0 and has a second name"):
        give_tree(place.data_dir / "data", NOBODY.pw_uid, NOBODY.pw_gid)
    place.require_untouched()


@pytest.mark.guarantee("G793")
@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["link", "pipe", "number of another process", "text"])
def test_the_pid_file_makes_root_stop_no_other_process(place: Place, kind: str) -> None:
    """A pipe must not block, and a link must not be read: the user of the server can write this file."""
    file = place.data_dir / PID_FILE
    if kind == "link":
        target = place.outside / "pid"
        target.write_text(f"{os.getpid()}")
        file.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.write_text(f"{os.getpid()}\n" if kind.startswith("number") else "no number")
    assert find_server(place.data_dir) is None
