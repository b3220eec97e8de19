"""Who may connect to the MQTT server: a file of users and hashed passwords.

One user a line, `USER:scrypt:N:R:P:SALT:HASH`, salt and hash in base64 (scrypt: RFC 7914); blank lines and lines that begin
with `#` are skipped. `python -m strandline.ingest.mqtt.passwords FILE USER` reads a password from standard input (asks for
it on a terminal) and adds or replaces that user's line. The server takes up a changed file within seconds.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import getpass
import hashlib
import hmac
import os
import secrets
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import structlog

from strandline.core.errors import InvalidSettings, StrandlineError, TransientError

logger = structlog.get_logger()

COST, BLOCK_SIZE, PARALLELISM = 2**14, 8, 1
"""scrypt's N, r and p: some 40 ms and 16 MB a password."""
CHECKS_WAITING_MAX = 200
"""Over it a client is told to come again: guessing must not use up the machine."""
_MEMORY_BYTES_MAX = 256 * 1024 * 1024
_NAME_FORBIDDEN = frozenset(":\r\n\0")


class TooManyChecks(TransientError):
    """So many passwords wait to be checked that this one was not."""

    code = "too_many_checks"


@dataclass(frozen=True)
class Entry:
    """One user's hashed password."""

    cost: int
    block_size: int
    parallelism: int
    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, password: bytes) -> Entry:
        """Hash a new password under a salt of its own."""
        salt = secrets.token_bytes(16)
        blank = cls(COST, BLOCK_SIZE, PARALLELISM, salt, b"")
        return cls(COST, BLOCK_SIZE, PARALLELISM, salt, blank.hash(password))

    def hash(self, password: bytes) -> bytes:
        return hashlib.scrypt(
            password,
            salt=self.salt,
            n=self.cost,
            r=self.block_size,
            p=self.parallelism,
            maxmem=_MEMORY_BYTES_MAX,
            dklen=32,
        )

    def line(self, user: str) -> str:
        salt, digest = (base64.b64encode(raw).decode() for raw in (self.salt, self.digest))
        return f"{user}:scrypt:{self.cost}:{self.block_size}:{self.parallelism}:{salt}:{digest}"


class Passwords:
    """Checks passwords, for one event loop. A wrong user takes as long as a wrong password.

    A password that was right is remembered under a key of this process only, so that a fleet that connects again all at
    once is not hashed all at once.
    """

    def __init__(self, path: Path) -> None:
        """Raises InvalidSettings when the file can't be read or has a line that is none."""
        self._path = path
        self._stamp = _stamp(path)
        self._entries = read_passwords(path)
        self._nobody = Entry.of(b"")
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="passwords")
        self._waiting = 0
        self._key = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}

    async def check(self, user: str, password: bytes) -> bool:
        """Raises TooManyChecks."""
        quick = hmac.digest(self._key, password, "sha256")
        entry = self._entries.get(user)
        if entry is not None and hmac.compare_digest(self._right.get(user, b""), quick):
            return True
        if self._waiting >= CHECKS_WAITING_MAX:
            raise TooManyChecks("too many passwords wait to be checked; connect again a little later")
        self._waiting += 1
        try:
            asked = entry or self._nobody
            digest = await asyncio.get_running_loop().run_in_executor(self._threads, asked.hash, password)
        finally:
            self._waiting -= 1
        is_right = hmac.compare_digest(digest, asked.digest) and entry is not None
        if is_right and self._entries.get(user) is entry:
            self._right[user] = quick
        return is_right

    def reload(self) -> None:
        """Take up a changed file. One that can't be read or is wrong changes nothing, and is logged once."""
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            self._entries = read_passwords(self._path)
            self._right.clear()
            logger.info("the password file was taken up", action="passwords_read", users=len(self._entries))
        except InvalidSettings as error:
            if self._stamp is not None:
                logger.error("the password file stays as it was", action="passwords_kept", reason=str(error))
            self._stamp = None

    def close(self) -> None:
        """Checks that wait are not made."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def read_passwords(path: Path) -> dict[str, Entry]:
    """Raises InvalidSettings, naming the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"the password file {path} can't be read: {error}") from error
    entries = {}
    tried: set[tuple[int, int, int]] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            user, kind, cost, block_size, parallelism, salt, digest = line.rstrip().split(":")
            if kind != "scrypt" or not user:
                raise ValueError(kind)
            entry = Entry(
                int(cost),
                int(block_size),
                int(parallelism),
                base64.b64decode(salt, validate=True),
                base64.b64decode(digest, validate=True),
            )
            if len(entry.digest) != 32:
                raise ValueError("the hash")
            numbers = (entry.cost, entry.block_size, entry.parallelism)
            if numbers not in tried:
                entry.hash(b"")  # whether scrypt takes them
                tried.add(numbers)
        except (ValueError, binascii.Error, MemoryError) as error:
            raise InvalidSettings(
                f"{path}:{number} is not USER:scrypt:N:R:P:SALT:HASH; write it with "
                f"python -m strandline.ingest.mqtt.passwords {path} USER"
            ) from error
        entries[user] = entry
    return entries


def write_password(path: Path, user: str, password: bytes) -> None:
    """Add or replace a user. The file is replaced whole, and only its owner can read it. Raises InvalidSettings."""
    if not user or not _NAME_FORBIDDEN.isdisjoint(user) or user.startswith("#"):
        raise InvalidSettings(f"{user!r} can't be a user's name: no ':', no line end, not a '#' first")
    entries = read_passwords(path) if path.exists() else {}
    entries[user] = Entry.of(password)
    new = path.with_name(path.name + ".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write("".join(entry.line(name) + "\n" for name, entry in entries.items()))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError as error:
        raise InvalidSettings(f"the password file {path} can't be read: {error}") from error
    return found.st_mtime_ns, found.st_ino


def main(arguments: list[str]) -> int:
    """Add or replace a user."""
    if len(arguments) != 2:
        print(
            "usage: python -m strandline.ingest.mqtt.passwords FILE USER   (password on standard input)",
            file=sys.stderr,
        )
        return 2
    password = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not password:
        print("strandline: the password is empty; nothing was written", file=sys.stderr)
        return 1
    try:
        write_password(Path(arguments[0]), arguments[1], password.encode())
    except (StrandlineError, OSError) as error:
        print(f"strandline: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
