"""The password file of the MQTT server."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from strandline.core.errors import InvalidSettings
from strandline.ingest.mqtt.passwords import Passwords, read_passwords, write_password

# hashlib.scrypt of `secret`: a file that was written before must stay readable.
LINE = "lundy:scrypt:16384:8:1:AAECAwQFBgcICQoLDA0ODw==:lUTkiXnaPIlt+39/W8AV+zIOgQ+DcviNZtmSHaWiqmU="


def test_a_user_that_was_written_is_read_and_checked(tmp_path):
    path = tmp_path / "passwords"
    write_password(path, "lundy", b"old")
    write_password(path, "skye", b"other")
    write_password(path, "lundy", b"right")
    assert path.stat().st_mode & 0o777 == 0o600

    async def check():
        with contextlib.closing(Passwords(path)) as passwords:
            asked = [("lundy", b"right"), ("lundy", b"old"), ("skye", b"other"), ("nobody", b"right")]
            first = [await passwords.check(user, password) for user, password in asked]
            assert first == [True, False, True, False]
            assert [await passwords.check(user, password) for user, password in asked] == first
            write_password(path, "lundy", b"new")
            passwords.reload()
            assert not await passwords.check("lundy", b"right")
            path.write_text("rubbish")
            os.utime(path, ns=(1, 1))
            passwords.reload()
            assert await passwords.check("lundy", b"new")

    asyncio.run(check())


def test_a_file_that_could_not_be_read_is_tried_again_and_told_once(tmp_path, monkeypatch, caplog):
    """The file is readable a moment later, and has not changed since, for example after a chmod."""
    path = tmp_path / "passwords"
    write_password(path, "lundy", b"old")
    with contextlib.closing(Passwords(path)) as passwords:
        write_password(path, "lundy", b"new")

        def refuse(*_, **__):
            raise PermissionError(13, "Permission denied")

        with monkeypatch.context() as unreadable:
            unreadable.setattr(Path, "read_text", refuse)
            for _ in range(3):
                passwords.reload()
        assert asyncio.run(passwords.check("lundy", b"old"))
        assert caplog.text.count("passwords_kept") == 1
        passwords.reload()
        assert asyncio.run(passwords.check("lundy", b"new"))


@pytest.mark.parametrize(
    "line",
    [
        "x",
        LINE.replace("scrypt", "md5"),
        LINE.replace("16384", "16383"),
        LINE[:-4],
        LINE.replace("lundy", ""),
        LINE + ":x",
    ],
)
def test_a_line_that_is_none_is_named(tmp_path, line):
    path = tmp_path / "passwords"
    path.write_text(f"# users\n\n{LINE}\n{line}\n")
    with pytest.raises(InvalidSettings, match=r"passwords:4 is not USER:scrypt"):
        read_passwords(path)


def test_the_format_of_the_file_stays(tmp_path):
    path = tmp_path / "passwords"
    path.write_text(LINE + "\n")
    entry = read_passwords(path)["lundy"]
    assert entry.hash(b"secret") == entry.digest
    assert f"lundy:{entry}" == LINE
