"""Passwords of the MQTT server: a file of users and hashed passwords.

Each line is a user, `USER:scrypt:N:R:P:SALT:HASH`, with salt and hash in base64 (scrypt: RFC 7914). Blank lines and
lines that begin with `#` are skipped. Lines of Mosquitto's `mosquitto_passwd` are accepted, too: `USER:$6$SALT$HASH`
(SHA-512) and `USER:$7$ITERATIONS$SALT$HASH` (PBKDF2 with HMAC-SHA-512, RFC 8018).

`python -m strandline.ingest.mqtt.passwords FILE USER` reads a password from standard input, with a prompt on a
terminal, and adds or replaces that user's line. The server reads a changed file within seconds.

The forms of Mosquitto are easier to guess than scrypt: `$6$` is one round of SHA-512, and `$7$` has 101 by default.
"""

from __future__ import annotations

import asyncio
import getpass
import hashlib
import hmac
import os
import secrets
import sys
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from strandline.core.errors import InvalidSettings, StrandlineError, TransientError

logger = structlog.get_logger()

NUMBERS = (2**14, 8, 1)
"""N, r, and p of scrypt: about 40 ms and 16 MB for each password."""
CHECKS_WAITING_MAX = 200
"""Maximum number of waiting checks. More clients must connect again later: guesses must not use up the machine."""
_MEMORY_BYTES_MAX = 256 * 1024 * 1024
_DIGEST_BYTES = 32
_MOSQUITTO_DIGEST_BYTES = 64
_ITERATIONS_MAX = 10_000_000
"""Maximum of a line: more iterations would block the only thread that hashes for seconds."""
_NAME_FORBIDDEN = frozenset(":\r\n\0")


class TooManyChecks(TransientError):
    """Too many passwords wait to be checked. This one was not checked."""

    code = "too_many_checks"


@dataclass(frozen=True)
class Entry:
    """One user's hashed password."""

    numbers: tuple[int, int, int]
    """N, r, and p of scrypt."""
    salt: bytes
    digest: bytes = b""

    @classmethod
    def of(cls, password: bytes) -> Entry:
        """Hash a new password with a new salt."""
        blank = cls(NUMBERS, secrets.token_bytes(16))
        return replace(blank, digest=blank.hash(password))

    @classmethod
    def parse(cls, text: str) -> Entry:
        """Read the part of a line after the user name. Raises ValueError if it has another form."""
        kind, n, r, p, salt, digest = text.split(":")
        entry = cls((int(n), int(r), int(p)), b64decode(salt, validate=True), b64decode(digest, validate=True))
        if kind != "scrypt" or len(entry.digest) != _DIGEST_BYTES:
            raise ValueError(text)
        return entry

    def hash(self, password: bytes) -> bytes:
        """Return the hash. Raises ValueError if scrypt doesn't accept the numbers."""
        n, r, p = self.numbers
        return hashlib.scrypt(password, salt=self.salt, n=n, r=r, p=p, maxmem=_MEMORY_BYTES_MAX, dklen=_DIGEST_BYTES)

    def __str__(self) -> str:
        return ":".join(
            ["scrypt", *map(str, self.numbers), *(b64encode(raw).decode() for raw in (self.salt, self.digest))]
        )


@dataclass(frozen=True)
class MosquittoEntry:
    """One user's hashed password, as Mosquitto writes it."""

    iterations: int
    """Number of PBKDF2 iterations. 0 for one plain SHA-512 (`$6$`)."""
    salt: bytes
    digest: bytes

    @classmethod
    def parse(cls, text: str) -> MosquittoEntry:
        """Read the part of a line after the user name. Raises ValueError if it has another form."""
        parts = text.split("$")
        if len(parts) == 4 and parts[:2] == ["", "6"]:
            iterations = 0
        elif len(parts) == 5 and parts[:2] == ["", "7"]:
            iterations = int(parts[2])
        else:
            raise ValueError(text)
        entry = cls(iterations, b64decode(parts[-2], validate=True), b64decode(parts[-1], validate=True))
        is_sound = len(entry.digest) == _MOSQUITTO_DIGEST_BYTES and 0 <= iterations <= _ITERATIONS_MAX
        if not is_sound or (parts[1] == "7" and iterations == 0):
            raise ValueError(text)
        return entry

    @property
    def numbers(self) -> tuple[int, int, int]:
        return self.iterations, 0, 0

    def hash(self, password: bytes) -> bytes:
        if self.iterations:
            return hashlib.pbkdf2_hmac("sha512", password, self.salt, self.iterations)
        return hashlib.sha512(password + self.salt).digest()

    def __str__(self) -> str:
        salt, digest = (b64encode(raw).decode() for raw in (self.salt, self.digest))
        return f"$7${self.iterations}${salt}${digest}" if self.iterations else f"$6${salt}${digest}"


class Passwords:
    """Checks passwords, for one event loop. An unknown user takes as long to refuse as a wrong password.

    A right password is remembered under a key of this process, so that the passwords of a fleet that reconnects aren't
    hashed again.
    """

    def __init__(self, path: Path) -> None:
        """Raises InvalidSettings if the file can't be read or a line is wrong."""
        self._path = path
        self._stamp = _stamp(path)
        self._reason = ""
        """Logged reason why the changed file isn't used."""
        self._entries = read_passwords(path)
        self._nobody = _decoy(self._entries)
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="passwords")
        self._waiting = 0
        self._key = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}

    async def check(self, user: str, password: bytes) -> bool:
        """Return True if the password is right. Raises TooManyChecks."""
        if self.is_known(user, password):
            return True
        entry = self._entries.get(user)
        if self._waiting >= CHECKS_WAITING_MAX:
            raise TooManyChecks("too many passwords wait to be checked; connect again a little later")
        self._waiting += 1
        try:
            compared = entry or self._nobody
            digest = await asyncio.get_running_loop().run_in_executor(self._threads, compared.hash, password)
        finally:
            self._waiting -= 1
        is_current = entry is not None and self._entries.get(user) == entry  # the file may have changed in the meantime
        is_right = hmac.compare_digest(digest, compared.digest) and is_current
        if is_right:
            self._right[user] = self._quick(password)
        return is_right

    def is_known(self, user: str, password: bytes) -> bool:
        """Return True if the password was right before. Needs no hashing."""
        return user in self._entries and hmac.compare_digest(self._right.get(user, b""), self._quick(password))

    def entry(self, user: str) -> Entry | MosquittoEntry | None:
        """Return the entry of a user. None if the file has no such user."""
        return self._entries.get(user)

    def _quick(self, password: bytes) -> bytes:
        return hmac.digest(self._key, password, "sha256")

    def reload(self) -> None:
        """Read the file if it has changed. If it can't be read or is wrong, keep the current users and log the reason
        once.

        The next call tries again: the file may be readable then without another change.
        """
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            self._entries = read_passwords(self._path)
            self._nobody = _decoy(self._entries)
            self._right.clear()
            self._stamp, self._reason = stamp, ""
            logger.info("the password file was read", action="passwords_read", users=len(self._entries))
        except InvalidSettings as error:
            if str(error) != self._reason:
                self._reason = str(error)
                logger.error("the changed password file is not used", action="passwords_kept", reason=str(error))

    def close(self) -> None:
        """Drop the checks that wait."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _decoy(entries: dict[str, Entry | MosquittoEntry]) -> Entry | MosquittoEntry:
    """Return the entry with which passwords of unknown users are hashed, so that they take as long as those of known
    users."""
    return next(iter(entries.values()), None) or Entry.of(b"")


def read_passwords(path: Path) -> dict[str, Entry | MosquittoEntry]:
    """Return the entries by user. Raises InvalidSettings with the number of a wrong line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    entries: dict[str, Entry | MosquittoEntry] = {}
    tried: set[tuple[int, int, int]] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            user, _, rest = line.rstrip().partition(":")
            entry = MosquittoEntry.parse(rest) if rest.startswith("$") else Entry.parse(rest)
            if not user:
                raise ValueError(line)
            if entry.numbers not in tried:
                entry.hash(b"")
                tried.add(entry.numbers)
        except (ValueError, MemoryError) as error:
            raise InvalidSettings(
                f"{path}:{number} is not USER:scrypt:N:R:P:SALT:HASH, nor a line of Mosquitto's with $6$ or $7$; write it with "
                f"python -m strandline.ingest.mqtt.passwords {path} USER"
            ) from error
        entries[user] = entry
    return entries


def write_password(path: Path, user: str, password: bytes) -> None:
    """Add or replace a user. The file is replaced as a whole, and only its owner can read it. Raises InvalidSettings
    for an invalid user name, or a wrong line in the file.
    """
    if not user or not _NAME_FORBIDDEN.isdisjoint(user) or user.startswith("#"):
        raise InvalidSettings(f"{user!r} can't be a user's name: no ':', no line end, not a '#' first")
    entries = read_passwords(path) if path.exists() else {}
    entries[user] = Entry.of(password)
    new = path.with_name(path.name + ".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write("".join(f"{name}:{entry}\n" for name, entry in entries.items()))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return found.st_mtime_ns, found.st_ino


def _unreadable(path: Path, error: Exception) -> InvalidSettings:
    return InvalidSettings(f"the password file {path} can't be read: {error}; check its path and its rights")


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
