"""The options of a `spark.read.format("strandline")`. Options appear in Spark's plans and logs, so secrets are only read from the
settings of each process (`STRANDLINE_*`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from strandline.core.documents import did_you_mean
from strandline.core.errors import InvalidSettings
from strandline.core.settings import Settings
from strandline.core.urls import without_credentials
from strandline.ledger.database import without_secrets

What = Literal["records", "raw", "dead_letters", "results"]
Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]
Store = Literal["stream", "elasticsearch"]

_WHERE = ("data_dir", "ledger", "kafka", "elasticsearch")
_OF_WHAT: dict[What, tuple[str, ...]] = {
    "records": ("stream", "job", "slices", "from", "to", "mode"),
    "raw": ("stream", "job", "slices", "from", "to"),
    "dead_letters": ("job", "from", "to"),
    "results": ("job", "stage", "store", "from", "to", "mode"),
}
_SLICES = re.compile(r"(\d*)(-?)(\d*)")
_HOLDS_SECRET = re.compile(r"://[^/]*:[^/]*@|password=")
_STACK_FILE = "stack.json"
"""File with the addresses of an embedded stack, in its data directory."""


@dataclass(frozen=True)
class ServiceAddresses:
    """Addresses of the services. Without secrets, because Spark sends it to other processes."""

    ledger_url: str
    kafka_bootstrap: str
    elasticsearch_url: str


@dataclass(frozen=True)
class Bound:
    """The beginning or the end of a range: a log time, or offsets (partition -> offset)."""

    time_ms: int | None = None
    offsets: Mapping[int, int] | None = None


NO_BOUND = Bound()


@dataclass(frozen=True)
class Request:
    """The data to read."""

    addresses: ServiceAddresses
    what: What
    stream: str | None
    job: str | None
    slices: tuple[int | None, int | None] | None
    """First and last slice. None in it if there is no bound. None instead of it if slices aren't requested."""
    stage: str | None
    store: Store | None
    since: Bound
    until: Bound
    mode: Mode


def request_of(options: Mapping[str, str]) -> Request:
    """Return the request of these options. Missing options come from the settings of this process. Raises InvalidSettings if an
    option is unknown, malformed, or doesn't fit the others."""
    given = {name.lower(): value for name, value in options.items()}
    what: What = _one_of("what", given.get("what", "records"), get_args(What))
    known = (*_WHERE, "what", *_OF_WHAT[what])
    for name in given:
        if name not in known:
            elsewhere = [of for of, names in _OF_WHAT.items() if name in names]
            where = f"; it is one of what={' and what='.join(elsewhere)}" if elsewhere else did_you_mean(name, known)
            raise InvalidSettings(f"what={what} has no option {name!r}{where}")
    if what in ("dead_letters", "results") and "job" not in given:
        raise InvalidSettings(f"what={what} needs the option 'job'")
    if what in ("records", "raw") and not ("stream" in given or "job" in given):
        raise InvalidSettings("set either 'stream', with 'from' and 'to', or 'job', with 'slices'")
    if "job" in given and what in ("records", "raw") and ("from" in given or "to" in given):
        raise InvalidSettings("a job is read by slices: set 'slices', or 'stream' with 'from' and 'to'")
    if "slices" in given and "job" not in given:
        raise InvalidSettings("slices belong to a job: set 'job' instead of 'stream'")
    return Request(
        addresses=_addresses(given),
        what=what,
        stream=given.get("stream"),
        job=given.get("job"),
        slices=_slices(given.get("slices", "")) if "job" in given and what in ("records", "raw") else None,
        stage=given.get("stage"),
        store=_one_of("store", given["store"], get_args(Store)) if "store" in given else None,
        since=_bound("from", given.get("from"), takes_offsets=what in ("records", "raw")),
        until=_bound("to", given.get("to"), takes_offsets=what in ("records", "raw")),
        mode=_one_of("mode", given.get("mode", "PERMISSIVE").upper(), get_args(Mode)),
    )


def _one_of(name: str, value: str, known: tuple[str, ...]) -> Any:
    """Return the value if it is a known one. Raises InvalidSettings otherwise."""
    if value not in known:
        raise InvalidSettings(f"option {name!r} is {value!r}; expected one of: {', '.join(known)}")
    return value


def _slices(text: str) -> tuple[int | None, int | None]:
    """Parse `7`, `3-9`, `3-`, `-9`, or an empty string for all."""
    match = _SLICES.fullmatch(text.replace(" ", ""))
    if match is None or match[0] == "-":
        raise InvalidSettings(
            f"option 'slices' is {text!r}; expected a number or a range, as '12', '12-40', '12-' or '-40'"
        )
    first, dash, last = match.groups()
    if not dash:
        last = first
    return int(first) if first else None, int(last) if last else None


def _bound(name: str, text: str | None, *, takes_offsets: bool) -> Bound:
    if text is None:
        return NO_BOUND
    try:
        if text.strip().startswith("{") and takes_offsets:
            offsets = {int(partition): int(offset) for partition, offset in json.loads(text).items()}
            if any(number < 0 for pair in offsets.items() for number in pair):
                raise ValueError
            return Bound(offsets=offsets)
        if text.strip().isdecimal():
            return Bound(time_ms=int(text))
        moment = datetime.fromisoformat(text.strip())
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return Bound(time_ms=round(moment.timestamp() * 1000))
    except (ValueError, TypeError, AttributeError, OverflowError):
        offsets_form = ", or offsets by partition, as '{\"0\": 1200}'" if takes_offsets else ""
        raise InvalidSettings(
            f"option {name!r} is {text!r}; expected a time, as '2026-11-24T10:00:00Z' (UTC by default), or milliseconds since "
            f"1970{offsets_form}"
        ) from None


def _addresses(given: Mapping[str, str]) -> ServiceAddresses:
    settings = Settings.read()
    found = {
        "ledger_url": settings.ledger_url,
        "kafka_bootstrap": settings.kafka_bootstrap,
        "elasticsearch_url": settings.elasticsearch_url,
    }
    if "data_dir" in given:
        path = Path(given["data_dir"]).absolute() / _STACK_FILE
        try:
            stack = json.loads(path.read_text(encoding="utf-8"))
            found = {name: str(stack[name]) for name in found}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidSettings(
                f"option 'data_dir': {path} does not contain the addresses of a stack ({error}); start a stack there: "
                f"strandline up --data-dir {given['data_dir']}"
            ) from error
        if stack.get("passwords") is True:
            _require_logins(settings, stack.get("outside") or [], path.parent)
    for option, name in (
        ("ledger", "ledger_url"),
        ("kafka", "kafka_bootstrap"),
        ("elasticsearch", "elasticsearch_url"),
    ):
        found[name] = given.get(option, found[name])
    addresses = ServiceAddresses(
        without_secrets(found["ledger_url"]),
        found["kafka_bootstrap"],
        without_credentials(found["elasticsearch_url"]),
    )
    if any(_HOLDS_SECRET.search(given.get(option, "")) for option in _WHERE):
        raise InvalidSettings(
            "a password in an option would appear in Spark's plans: pass the address without it, and set "
            "STRANDLINE_LEDGER_PASSWORD, STRANDLINE_ELASTICSEARCH_PASSWORD or _API_KEY for Spark's processes"
        )
    return addresses


def _require_logins(settings: Settings, outside: list[str], data_dir: Path) -> None:
    """Raise InvalidSettings if this process lacks passwords for the servers that the stack itself runs, which require them.

    `outside`: servers that the stack doesn't run, and which aren't checked. `data_dir`: data directory of the stack."""
    passwords = {"kafka": settings.kafka_password, "elasticsearch": settings.elasticsearch_password}
    if any(password is None for server, password in passwords.items() if server not in outside):
        raise InvalidSettings(
            "option 'data_dir': the servers of that stack require passwords, which Spark's processes read from their settings; "
            f"before Spark starts: set -a; . '{data_dir}/passwords/strandline.env'; set +a"
        )


def own_elasticsearch_url(url: str) -> str:
    """Return the address with the credentials of this process's settings, if these are for the same server."""
    own = Settings.read().elasticsearch_url
    return own if without_credentials(own) == url else url
