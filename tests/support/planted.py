"""Secrets that a test plants, and what it saw of a deployment: where any of them shows, in whatever form."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import psutil
import sqlalchemy as sa


def new_secret(name: str) -> str:
    """A secret that says in a failed test which setting it is of; some of its characters are written otherwise in a URL."""
    return f"planted/{name}+{secrets.token_hex(8)}"


def forms_of(secret: str) -> set[bytes]:
    """Return the forms of a secret: plain, in a URL, in hexadecimal, and in base64 at each offset (as in
    `Authorization: Basic`)."""
    raw = secret.encode()
    found = {raw, quote(secret).encode(), quote(secret, safe="").encode(), raw.hex().encode()}
    for before in range(3):
        whole = base64.b64encode(b"?" * before + raw)
        # What its neighbours change of the first and last characters is left out.
        found.add(whole[(before * 8 + 5) // 6 : (before + len(raw)) * 8 // 6])
    return found


def leaks(planted: Mapping[str, str], seen: Iterable[tuple[str, bytes]]) -> list[str]:
    """`SETTING in PLACE` for each secret that shows."""
    forms = {name: forms_of(secret) for name, secret in planted.items()}
    return [
        f"{name} in {place}"
        for place, text in seen
        for name, wanted in forms.items()
        if any(one in text for one in wanted)
    ]


def files_below(directory: Path, meant: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    """Every file but those that are meant to hold a secret."""
    left_out = {path.resolve() for path in meant}
    for path in directory.rglob("*"):
        if path.is_file() and path.resolve() not in left_out:
            yield str(path), path.read_bytes()


def arguments_of_processes() -> Iterator[tuple[str, bytes]]:
    """Yield the arguments of every process of this machine."""
    for process in psutil.process_iter(["pid", "cmdline"]):
        yield f"the arguments of {process.info['pid']}", "\0".join(process.info["cmdline"] or ()).encode()


def tables_of(url: str, meant: Iterable[str] = ()) -> Iterator[tuple[str, bytes]]:
    """Every value of a database, but of the columns (`TABLE.COLUMN`) that are meant to hold a secret."""
    left_out = set(meant)
    engine = sa.create_engine(url)
    tables = sa.MetaData()
    tables.reflect(engine)
    with engine.connect() as connection:
        for table in tables.sorted_tables:
            columns = [column for column in table.columns if f"{table.name}.{column.name}" not in left_out]
            for row in connection.execute(sa.select(*columns)):
                yield f"table {table.name}", repr(tuple(row)).encode()
    engine.dispose()
