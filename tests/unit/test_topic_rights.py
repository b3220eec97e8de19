"""The rights of each user of the MQTT server: Mosquitto's form of the file, and logins with tokens and without."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.access.authenticator import Authenticator
from strandline.access.topic_rights import matches, read_topic_rights
from strandline.core.errors import InvalidSettings
from strandline.ingest.mqtt.logins import Logins, RightsFile
from strandline.ingest.mqtt.passwords import Passwords, read_passwords, write_password
from tests.support.tokens import ToldBook
from tests.support.waiting import stretched
from tests.unit.test_doorkeeper import ROW, TOKEN

FILE = """\
# rights
user lundy
topic write farm/+/power
topic readwrite farm/lundy/#
topic deny farm/lundy/secret/#
topic read everything/#
client lundy-*
client lundy
stream turbines

user skye
topic sky/blue

pattern write dev/%u/%c/#
pattern read others/#
"""


@pytest.mark.guarantee("G325")
@pytest.mark.parametrize(
    ("user", "client_id", "topic", "stream", "may"),
    [
        ("lundy", "lundy-1", "farm/fair/power", "turbines", True),
        ("lundy", "lundy-1", "farm/fair/power/x", "turbines", False),
        ("lundy", "lundy-1", "farm/lundy", "turbines", True),
        ("lundy", "lundy-1", "farm/lundy/a/b", "turbines", True),
        ("lundy", "lundy-1", "farm/lundy/secret", "turbines", False),
        ("lundy", "lundy-1", "farm/lundy/secret/x", "turbines", False),
        ("lundy", "lundy-1", "farm/fair/power", "others", False),
        ("lundy", "lundy-1", "everything/a", "turbines", False),
        ("skye", "s", "sky/blue", "any", True),
        ("skye", "s", "sky/grey", "any", False),
        ("skye", "s", "dev/skye/s/t", "any", True),
        ("skye", "s", "dev/lundy/s/t", "any", False),
        ("skye", "s", "others/x", "any", False),
        ("nobody", "n", "dev/nobody/n", "any", True),
        ("nobody", "n", "sky/blue", "any", False),
        ("+", "n", "dev/lundy/n", "any", False),
        ("nobody", "#", "dev/nobody/x/y", "any", False),
        ("a/b", "n", "dev/a/b/n", "any", False),
    ],
)
def test_a_user_publishes_where_the_file_allows_it(
    user: str, client_id: str, topic: str, stream: str, may: bool, tmp_path: Path
) -> None:
    path = tmp_path / "rights"
    path.write_text(FILE)
    assert read_topic_rights(path).may_publish(user, client_id, topic, stream) is may


@pytest.mark.parametrize(
    ("user", "client_id", "may"),
    [("lundy", "lundy", True), ("lundy", "lundy-7", True), ("lundy", "skye-7", False), ("skye", "lundy-7", True)],
)
def test_a_user_connects_under_its_own_identifiers(user: str, client_id: str, may: bool, tmp_path: Path) -> None:
    path = tmp_path / "rights"
    path.write_text(FILE)
    assert read_topic_rights(path).may_connect(user, client_id) is may


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("topic a/b", "without a name"),
        ("client x", "it is before the first line `user NAME`"),
        ("user", "has no value"),
        ("allow a", "must begin with"),
        ("user a\ntopic write", "is not a topic filter"),
        ("user a\ntopic write a/#/b", "is not a topic filter"),
        ("user a\ntopic a+/b", "is not a topic filter"),
        ("pattern deny a", "can't deny"),
    ],
)
def test_a_wrong_line_is_named(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "rights"
    path.write_text(f"{line}\n")
    with pytest.raises(InvalidSettings, match=said) as refused:
        read_topic_rights(path)
    assert f"{path}:{len(line.splitlines())}:" in str(refused.value)


@pytest.mark.parametrize(
    ("topic_filter", "topic", "is_match"),
    [
        ("#", "a/b", True), ("#", "$SYS/a", False), ("+/b", "$SYS/b", False), ("$SYS/#", "$SYS/b", True), ("a/#", "a", True),
        ("a/#", "b", False), ("a/+", "a", False), ("a/+", "a/", True), ("+", "", True), ("a", "a/b", False),
    ],
)  # fmt: skip
def test_filters_match_as_mqtt_says(topic_filter: str, topic: str, is_match: bool) -> None:
    assert matches(topic_filter, topic) is is_match


@pytest.mark.guarantee("G325")
def test_a_token_is_the_password_of_the_user_who_is_named_like_it(tmp_path: Path) -> None:
    """A token writes to its streams, and ends when it is revoked. If the file of rights names its user, both must allow."""
    secret = TOKEN.removeprefix(b"Bearer ")
    rights = tmp_path / "rights"
    rights.write_text("user sensor\ntopic a/#\n")

    async def run() -> None:
        book = ToldBook()
        door = Authenticator(book, look_s=1, kept_s=10)
        book.add(ROW)
        await door.look()
        logins, with_file = Logins(None, door, None), Logins(None, door, RightsFile(rights))
        assert logins.known("sensor", secret) is None
        assert await logins.check("other", secret) is None, "the name of another"
        assert await logins.check("sensor", secret[:-1] + b"T") is None
        assert await logins.check("sensor", b"") is None
        login = await logins.check("sensor", secret)
        assert login is not None and logins.known("sensor", secret) is not None
        assert logins.known("other", secret) is None
        assert login.may_publish("c", b"b/c", "readings") and not login.may_publish("c", b"b/c", "others")
        narrow = await with_file.check("sensor", secret)
        assert narrow is not None
        for _ in range(2):
            assert narrow.may_publish("c", b"a/c", "readings") and not narrow.may_publish("c", b"b/c", "readings")
        rights.write_text("user sensor\ntopic b/#\n")
        os.utime(rights, ns=(1, 1))
        with_file.reload()
        assert narrow.may_publish("c", b"b/c", "readings") and not narrow.may_publish("c", b"a/c", "readings")
        rights.write_text("rubbish\n")
        os.utime(rights, ns=(2, 2))
        with_file.reload()
        assert narrow.may_publish("c", b"b/c", "readings"), "a wrong file changes nothing"
        assert logins.is_valid(login) and logins.is_valid(None)
        book.revoke(ROW.id)
        await door.look()
        assert not logins.is_valid(login)
        book.add(replace(ROW, expires_ms=1))
        book.revoked += 1
        await door.look()
        assert await logins.check("sensor", secret) is None
        door.close()

    asyncio.run(run())


def test_a_file_of_rights_that_could_not_be_read_is_tried_again_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is readable a moment later, and has not changed since, for example after a chmod."""
    path = tmp_path / "rights"
    path.write_text("user skye\ntopic old\n")
    rights = RightsFile(path)
    path.write_text("user skye\ntopic new\n")
    os.utime(path, ns=(1, 1))

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as unreadable:
        unreadable.setattr(Path, "read_text", refuse)
        for _ in range(3):
            rights.reload()
    assert rights.rights.may_publish("skye", "c", "old", "any")
    assert caplog.text.count("rights_kept") == 1
    rights.reload()
    assert rights.rights.may_publish("skye", "c", "new", "any")


def test_a_user_of_the_password_file_publishes_everywhere_without_a_file_of_rights(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    write_password(passwords, "lundy", b"right")
    rights = tmp_path / "rights"
    rights.write_text("user skye\ntopic sky\n")

    async def run() -> None:
        checked = Passwords(passwords)
        login = await Logins(checked, None, None).check("lundy", b"right")
        assert login is not None and login.may_publish("c", b"any", "any") and login.may_connect("any")
        narrow = await Logins(checked, None, RightsFile(rights)).check("lundy", b"right")
        assert narrow is not None and not narrow.may_publish("c", b"sky", "any"), "the file does not name it"
        checked.close()

    asyncio.run(run())


MOSQUITTO_PASSWD = shutil.which("mosquitto_passwd")


@pytest.mark.skipif(MOSQUITTO_PASSWD is None, reason="mosquitto is not installed")
@pytest.mark.parametrize("options", [["-H", "sha512"], ["-H", "sha512-pbkdf2"], ["-H", "sha512-pbkdf2", "-I", "1000"]])
def test_lines_that_mosquitto_wrote_are_read(options: list[str], tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    path.touch(0o600)
    assert MOSQUITTO_PASSWD is not None
    done = subprocess.run(
        [MOSQUITTO_PASSWD, "-b", *options, str(path), "lundy", "right: Ærø"],
        capture_output=True,
        timeout=stretched(60),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    write_password(path, "skye", b"other")
    line = path.read_text().splitlines()[0]
    assert line.startswith("lundy:$6$" if options[1] == "sha512" else "lundy:$7$"), "it is kept as it was"

    async def run() -> None:
        passwords = Passwords(path)
        for user, password, is_right in (
            ("lundy", "right: Ærø", True),
            ("lundy", "right", False),
            ("skye", "other", True),
            ("nobody", "other", False),
        ):
            assert await passwords.check(user, password.encode()) is is_right
        passwords.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "line", ["$5$AAAA$AAAA", "$6$AAAA", "$7$0$AAAA$AAAA", "$7$x$AAAA$AAAA", "$6$AAAA$AAAA", "$7$-1$AA==$AA=="]
)
def test_lines_that_mosquitto_did_not_write_are_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    path.write_text(f"lundy:{line}\n")
    with pytest.raises(InvalidSettings, match="passwords:1 is not"):
        read_passwords(path)


@pytest.mark.guarantee(
    "G788",
    "An MQTT connection ends within seconds after its user is removed from the password file or gets another "
    "password, and after its token is revoked or gets other rights.",
    promise="each-operation-requires-its-right",
)
@pytest.mark.parametrize("change", ["another password", "removed", "other users only"])
def test_a_user_of_the_password_file_stays_only_as_long_as_its_password(change: str, tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    write_password(path, "sensor", b"first")
    write_password(path, "other", b"second")

    async def run() -> None:
        passwords = Passwords(path)
        logins = Logins(passwords, None, None)
        login = await logins.check("sensor", b"first")
        assert login is not None and logins.is_valid(login)
        if change == "another password":
            write_password(path, "sensor", b"third")
        elif change == "removed":
            path.write_text("".join(line for line in path.read_text().splitlines(True) if line.startswith("other")))
        else:
            write_password(path, "other", b"third")
        logins.reload()
        assert logins.is_valid(login) is (change == "other users only")
        passwords.close()

    asyncio.run(run())


@pytest.mark.guarantee("G788")
def test_a_connection_with_a_token_ends_when_its_rights_change() -> None:
    secret = TOKEN.removeprefix(b"Bearer ")

    async def run() -> None:
        book = ToldBook()
        door = Authenticator(book, look_s=1, kept_s=10)
        book.add(ROW)
        await door.look()
        logins = Logins(None, door, None)
        login = await logins.check("sensor", secret)
        assert logins.is_valid(login)
        book.add(replace(ROW, writes=("others",)))
        book.revoked += 1
        await door.look()
        assert not logins.is_valid(login)
        door.close()

    asyncio.run(run())
