"""Passwords of a stack's own Kafka, Elasticsearch, and MQTT broker. They are created at the first start with passwords.

`DIR/passwords`, which only its owner can enter, stores them. Every process of the stack uses them through the settings for
external servers. No password appears in an argument, a log, `stack.json`, or a response, and each process reads its own file
(docs/decisions/0060, docs/decisions/0095).

The other files there are for people: logins for Kafka's tools, curl, and other processes of Strandline.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Iterator
from pathlib import Path

from strandline.core.errors import StackError
from strandline.core.settings import Settings
from strandline.services.doctor.finding import Finding, ok, warning, wrong
from strandline.services.embedded.addresses import (
    LOGIN_FIELDS,
    OUTSIDE_FIELDS,
    SERVER_NAMES,
    STACK_FILE,
    STACK_USER,
    StackAddresses,
    read_stack,
)
from strandline.services.embedded.kafka_server import login_module
from strandline.services.processes.private_files import write_private

PASSWORDS_DIR = "passwords"
NETRC = "netrc"
"""Name of the file for curl."""
_BYTES = 32
_MQTT_CONNECTION = frozenset(f"STRANDLINE_MQTT_{name}" for name in ("URL", "USERNAME", "PASSWORD", "CA_FILE"))
_USABLE = re.compile(r"[A-Za-z0-9_-]{20,200}")
"""Passwords that need no quoting in any file."""


def choose_passwords(given: bool | None, settings: Settings, data_dir: Path) -> bool:
    """Return True if the stack's own servers must require passwords. The option takes precedence over the setting, and the
    setting over the value in `stack.json`. A new stack requires them."""
    if given is not None:
        return given
    if settings.embedded_passwords is not None:
        return settings.embedded_passwords
    return read_stack(data_dir).passwords if (data_dir / STACK_FILE).exists() else True


def ensure_passwords(addresses: StackAddresses) -> None:
    """Create a password for each server that requires one, and the files for people. Existing passwords are kept.

    Raises StackError if they can't be stored, or if a file doesn't contain a password.
    """
    directory = Path(addresses.data_dir) / PASSWORDS_DIR
    if not addresses.secured():
        return
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        directory.chmod(0o700)
        for server in addresses.secured():
            file = directory / server
            if not file.exists():
                write_private(file, f"{secrets.token_urlsafe(_BYTES)}\n".encode("ascii"))
            file.chmod(0o600)
        for name, text in _for_people(addresses).items():
            write_private(directory / name, text.encode())
    except OSError as error:
        raise StackError(
            f"can't write the passwords of the stack to {directory}: {error.strerror}; correct this, then run "
            "strandline up again"
        ) from error


def read_password(addresses: StackAddresses, server: str) -> str | None:
    """Return the password that this server of the stack requires. None if it requires none. Raises StackError if it is missing
    or invalid."""
    if server not in addresses.secured():
        return None
    file = password_file(addresses, server)
    remedy = f"delete it and start the stack again: strandline down, then up, --data-dir {addresses.data_dir}"
    try:
        password = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise StackError(f"can't read the password of the stack's {server} from {file} ({reason}); {remedy}") from None
    if not _USABLE.fullmatch(password):
        raise StackError(f"{file} does not contain a password of 20 to 200 letters, digits, - and _; {remedy}")
    return password


def login_settings(addresses: StackAddresses) -> dict[str, str]:
    """Return the settings with which a process logs in to the servers of the stack: variable -> value. They contain no
    password."""
    found: dict[str, str] = {}
    for server in addresses.secured():
        address = OUTSIDE_FIELDS[server]
        fields = {
            address: str(getattr(addresses, address)),
            **LOGIN_FIELDS[server],
            f"{server}_password_file": str(password_file(addresses, server)),
        }
        found |= {f"STRANDLINE_{name.upper()}": value for name, value in fields.items()}
    return found


def netrc_file(addresses: StackAddresses) -> Path:
    """Return the path of the file with which curl logs in to the stack's Elasticsearch; an empty file if it requires no
    password.

    Raises StackError if the file is missing.
    """
    if "elasticsearch" not in addresses.secured():
        return Path(os.devnull)
    path = Path(addresses.data_dir) / PASSWORDS_DIR / NETRC
    if not path.exists():
        raise StackError(f"{path} is missing; to write it again, run strandline up --data-dir {addresses.data_dir}")
    return path


def use_logins(addresses: StackAddresses, environment: os._Environ[str] | dict[str, str] = os.environ) -> None:
    """Let this process, and its child processes, log in to the servers of the stack that require a password. Settings for other
    servers of the same kind are removed. Raises StackError if a password is missing."""
    for server in addresses.secured():
        read_password(addresses, server)
        for other in [name for name in environment if _sets_login(name.upper(), server)]:
            del environment[other]
    environment.update(login_settings(addresses))


def _sets_login(variable: str, server: str) -> bool:
    """Return True if the variable configures the connection to this kind of server. Most MQTT settings configure gateways."""
    if server != "mqtt":
        return variable.startswith(f"STRANDLINE_{server.upper()}_")
    return variable.removesuffix("_FILE") in _MQTT_CONNECTION or variable in _MQTT_CONNECTION


def check_passwords(addresses: StackAddresses) -> Iterator[Finding]:
    """Check which other users can use the stack's own servers."""
    subject = "passwords"
    data_dir = Path(addresses.data_dir)
    if is_open := [name for name in LOGIN_FIELDS if name not in (*addresses.outside, *addresses.secured())]:
        names = ", ".join(SERVER_NAMES[name] for name in is_open)
        yield ok(
            subject,
            f"every process of this machine can use {names} of the stack, and web pages in its browsers can use Elasticsearch; "
            "to require passwords, run strandline down, then strandline up --passwords",
        )
    if not addresses.secured():
        return
    directory = data_dir / PASSWORDS_DIR
    readable = [path for path in (directory, *sorted(directory.glob("*"))) if path.stat().st_mode & 0o077]
    for path in readable:
        remedy = f"run chmod go= {path}, then create new passwords: stop the stack, delete {directory}, start the stack"
        yield wrong(subject, f"{path} is open to other users of this machine", remedy)
    if not readable:
        yield ok(subject, f"only their owner can read the passwords in {directory}")
    if data_dir.stat().st_mode & 0o007:
        remedy = f"chmod o= {data_dir}"
        yield warning(
            subject, f"other users can enter {data_dir}, which contains files with records and results", remedy
        )


def password_file(addresses: StackAddresses, server: str) -> Path:
    """Return the path of the file with the password of this server."""
    return Path(addresses.data_dir) / PASSWORDS_DIR / server


def _for_people(addresses: StackAddresses) -> dict[str, str]:
    """Return file -> content. Raises StackError."""
    files = {
        "strandline.env": "".join(f"{name}={shlex.quote(value)}\n" for name, value in login_settings(addresses).items())
    }
    kafka = read_password(addresses, "kafka")
    if kafka is not None:
        settings = {
            "security.protocol": LOGIN_FIELDS["kafka"]["kafka_security_protocol"],
            "sasl.mechanism": LOGIN_FIELDS["kafka"]["kafka_sasl_mechanism"],
            "sasl.jaas.config": login_module(kafka),
        }
        files["kafka.properties"] = "".join(f"{name}={value}\n" for name, value in settings.items())
    elasticsearch = read_password(addresses, "elasticsearch")
    if elasticsearch is not None:
        hosts = ("127.0.0.1", "localhost")
        files[NETRC] = "".join(f"machine {one} login {STACK_USER} password {elasticsearch}\n" for one in hosts)
    return files
