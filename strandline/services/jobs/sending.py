"""Addresses and commands with which devices send records of a stream, for gateways that this service knows."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strandline.core.described import Described
from strandline.core.errors import FunctionUnusable
from strandline.core.field_types import JSON_TYPE, element_of, kind_of, members_of
from strandline.core.json_paths import JsonPath, parse_json_path
from strandline.core.streams.fields import FieldSpec
from strandline.core.streams.format_registry import form_of
from strandline.core.streams.stream import StreamSpec
from strandline.core.urls import without_credentials
from strandline.ingest.gateway.contract import SenderExample
from strandline.ingest.registry import installed_gateways

PLACEHOLDER = "RECORD"
"""Placeholder of a record in commands, if no example can be made from the fields of the stream."""
_WORD, _INTEGER, _NUMBER = "text", 1, 1.5
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True)
class WayToSendView(Described):
    """Address and command with which a device sends records of a stream to one gateway."""

    gateway: str
    """Name of the gateway, as `http`."""
    title: str
    address: str
    topics: list[str]
    """MQTT topic filters of the stream. Empty for other protocols."""
    command: str
    """Command line that sends one record. `TOKEN` stands for the token of the device, `RECORD` for a record if there is no
    example. Empty if there is none."""
    note: str


@dataclass(frozen=True)
class SendingView(Described):
    """Addresses and commands with which records get into a stream."""

    stream: str
    content_type: str
    """Content type of one record at the HTTP gateway."""
    record: str | None
    """A record with the declared fields. Its values are examples. Null if the format isn't JSON, or if a record has several
    rows."""
    can_relay: bool
    """True if this service knows an HTTP gateway to which it relays records of users."""
    ways: list[WayToSendView]
    """Gateways that accept records of the stream, and whose address this service knows."""


@dataclass(frozen=True)
class KnownGateways:
    """Addresses of gateways, from the settings of a control service."""

    urls: Mapping[str, str]
    """Name of a gateway -> address for senders. See STRANDLINE_SENDER_URLS."""
    port_offset: int
    """Number that the UDP and TCP gateways add to ports in documents."""
    can_relay: bool


def ways_to_send(stream: StreamSpec, known: KnownGateways, *, requires_token: bool) -> SendingView:
    """Return how records get into the stream. `requires_token`: True if gateways authenticate senders."""
    record = example_record(stream, time.time_ns() // 1_000_000)
    content_type = form_of(stream.format).content_type.decode()
    example = SenderExample(record or PLACEHOLDER, content_type, requires_token, known.port_offset)
    try:
        gateways = installed_gateways()
    except FunctionUnusable:  # the doctor reports it
        gateways = {}
    ways = [
        WayToSendView(name, gateways[name].title, way.address, list(way.topics), way.command, way.note)
        for name, url in known.urls.items()
        if name in gateways
        for way in gateways[name].ways_to_send(stream, without_credentials(url), example)
    ]
    return SendingView(stream.stream, content_type, record, known.can_relay, ways)


def example_record(stream: StreamSpec, now_ms: int) -> str | None:
    """Return a JSON object that the stream accepts, with each declared field. None if the records are no such objects."""
    if not form_of(stream.format).is_json or stream.explode is not None or form_of(stream.format).has_schema:
        return None
    record: dict[str, Any] = {}
    for name, field in stream.fields.items():
        if field.type == JSON_TYPE or field.joined:
            continue
        path = parse_json_path(field.path) if field.path is not None else (name,)
        if not path or not _put(record, path, _example(field, now_ms)):
            return None
    return json.dumps(record, ensure_ascii=False)


def _put(record: dict[str, Any], path: JsonPath, value: Any) -> bool:
    """Set the value at the path. Return False if the path leads through an array, or through another value."""
    for step in path[:-1]:
        inner = record.setdefault(step, {}) if isinstance(step, str) else None
        if not isinstance(inner, dict):
            return False
        record = inner
    if not isinstance(path[-1], str) or path[-1] in record:
        return False
    record[path[-1]] = value
    return True


def _example(field: FieldSpec, now_ms: int) -> Any:
    if field.type == "timestamp":
        return _time(field, now_ms)
    value = _of_type(field.type)
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = field.min, field.max
        if isinstance(low, int | float) and value < low:
            value = type(value)(low)
        if isinstance(high, int | float) and value > high:
            value = type(value)(high)
    return value


def _time(field: FieldSpec, now_ms: int) -> str | int:
    """Return the time now: a number if the document declares a unit other than the default, else ISO 8601."""
    if field.pattern is None and field.unit not in (None, "ms"):
        return now_ms * _PER_SECOND[field.unit] // 1_000
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_ms // 1_000))


def _of_type(name: str) -> Any:
    kind = kind_of(name)
    if kind == "array":
        return [_of_type(element_of(name) or "string")]
    if kind == "struct":
        return {member: _of_type(inner) for member, inner in members_of(name).items()}
    if kind in ("string", "any"):
        return _WORD
    if kind == "boolean":
        return True
    if kind == "timestamp":
        return "2026-01-01T00:00:00Z"
    return _NUMBER if kind in ("double", "float", "decimal") else _INTEGER
