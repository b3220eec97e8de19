"""Checks whether a gateway kept its promises, from a history of sent and acknowledged records and a dump of the topic.

Has no other input, and shares no code with the platform: a common mistake would never be found. A record is identified
by the `id` in its JSON value; ids are never used for two records. An id that ends with UNKEYED belongs to a record that
is broken on purpose: it is found in the bytes, and the record may be in any partition.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SHOWN_MAX = 5
"""Maximum number of violations of each kind that are shown in full."""
UNKEYED = "~"
_BROKEN_ID = re.compile(rb'"id":"([^"]*%s)"' % UNKEYED.encode())


@dataclass(frozen=True)
class Logged:
    """A record as the topic holds it."""

    partition: int
    offset: int
    value: bytes


@dataclass
class Verdict:
    """Findings.

    The lists contain violations, each as a message with the record; the gateway passes if all are empty.
    """

    sent: int = 0
    """Distinct records that were sent at least once."""
    acknowledged: int = 0
    refused: int = 0
    """Every time it was sent, the answer was that nothing was persisted."""
    unknown_found: int = 0
    """The sender can't know; it is in the topic."""
    unknown_missing: int = 0
    logged: int = 0
    """Records in the topic."""
    resent: int = 0
    """Records in the topic beyond the first of an id, each explained by a repeat of the sender's own."""
    lost: list[str] = field(default_factory=list)
    """Acknowledged, and not in the topic."""
    twice: list[str] = field(default_factory=list)
    """More often in the topic than it was sent."""
    altered: list[str] = field(default_factory=list)
    """In the topic with other bytes than were sent."""
    foreign: list[str] = field(default_factory=list)
    """In the topic, and never sent."""
    denied: list[str] = field(default_factory=list)
    """In the topic, though each answer said that nothing was persisted."""
    out_of_order: list[str] = field(default_factory=list)
    """Records of one client, and so of one key, that are before a record that was acknowledged earlier, or in another
    partition."""
    contradictions: list[str] = field(default_factory=list)
    """The history itself can't be."""

    @property
    def violations(self) -> list[str]:
        return [
            *self.contradictions,
            *self.lost,
            *self.twice,
            *self.altered,
            *self.foreign,
            *self.denied,
            *self.out_of_order,
        ]

    def __str__(self) -> str:
        counts = (
            f"sent {self.sent}, acknowledged {self.acknowledged}, refused {self.refused}, unknown "
            f"{self.unknown_found + self.unknown_missing} ({self.unknown_found} in the topic), logged {self.logged}, "
            f"sender's repeats {self.resent}"
        )
        kinds = ("lost", "twice", "altered", "foreign", "denied", "out_of_order", "contradictions")
        lines = [
            f"{kind} {len(found)}: " + "; ".join(found[:SHOWN_MAX]) for kind in kinds if (found := getattr(self, kind))
        ]
        return "\n".join([counts, *lines])


@dataclass
class _Sent:
    """All there is to know about one id."""

    client: str
    hash: str
    attempts: int = 0
    refusals: int = 0
    is_acknowledged: bool = False
    floor: tuple[int, int] | None = None
    """Partition and offset that the client's records had reached, by what was acknowledged, when this was first sent."""


def id_of(value: bytes) -> str | None:
    """Return the `id` of a JSON object, or the id in the bytes of a record that is broken on purpose. None if there is none."""
    try:
        record_id = json.loads(value)["id"]
    except (ValueError, TypeError, KeyError):
        found = _BROKEN_ID.search(value)
        record_id = found[1].decode() if found else None
    return record_id if isinstance(record_id, str) else None


def check(
    history: Iterable[str],
    dump: Iterable[Logged],
    *,
    may_repeat: bool = False,
    may_move: bool = False,
    id_of: Callable[[bytes], str | None] = id_of,
) -> Verdict:
    """Compare the promises with the topic.

    1. Read the topic: the position of each id, and records that can't belong to the test.
    2. Follow the history line by line, in the senders' order.
    3. Compare each sent id with its positions.

    Args:
    - may_repeat: A component between the senders and the gateway, such as an MQTT broker, can resend. Its duplicates are
      counted with those of the senders.
    - may_move: Partitions were added, so a client's records may be in another partition from then on. In each they keep
      their order.
    - id_of: Returns the id of a record of the topic. None if the record can't belong to the test.
    """
    verdict = Verdict()
    places = _read_dump(dump, verdict, id_of)
    sent = _follow(history, places, verdict)
    for record_id, record in sent.items():
        _judge(record_id, record, places.get(record_id, []), verdict, may_repeat, may_move)
    for record_id in places.keys() - sent.keys():
        verdict.foreign.append(f"{record_id} at {_place(places[record_id][0])} was never sent")
    verdict.sent = len(sent)
    return verdict


def check_files(
    history: Path,
    dump: Iterable[Logged],
    *,
    may_repeat: bool = False,
    may_move: bool = False,
    id_of: Callable[[bytes], str | None] = id_of,
) -> Verdict:
    """`check` for a history in a file."""
    with history.open(encoding="utf-8") as lines:
        return check(lines, dump, may_repeat=may_repeat, may_move=may_move, id_of=id_of)


def merged(verdicts: Mapping[str, Verdict]) -> Verdict:
    """Return the sums of several verdicts, by stream. Each violation names its stream, if there are several."""
    if len(verdicts) == 1:
        return next(iter(verdicts.values()))
    found = Verdict()
    for stream, verdict in verdicts.items():
        for name, value in vars(verdict).items():
            more = [f"{stream}: {one}" for one in value] if isinstance(value, list) else value
            setattr(found, name, getattr(found, name) + more)
    return found


def _read_dump(
    dump: Iterable[Logged], verdict: Verdict, id_of: Callable[[bytes], str | None]
) -> dict[str, list[Logged]]:
    places: dict[str, list[Logged]] = {}
    for logged in dump:
        verdict.logged += 1
        record_id = id_of(logged.value)
        if record_id is not None:
            places.setdefault(record_id, []).append(logged)
        else:
            verdict.foreign.append(f"the record at {_place(logged)} is none of ours: {logged.value[:80]!r}")
    return places


def _follow(history: Iterable[str], places: Mapping[str, list[Logged]], verdict: Verdict) -> dict[str, _Sent]:
    sent: dict[str, _Sent] = {}
    under_way: dict[int, list[str]] = {}
    settled: set[int] = set()
    floors: dict[str, tuple[int, int]] = {}
    for line in history:
        event = json.loads(line)
        op, request = event["op"], event["request"]
        if op == "invoke":
            if request in under_way or request in settled:
                verdict.contradictions.append(f"request {request} was invoked twice")
            under_way[request] = list(event["records"])
            for record_id, value_hash in event["records"].items():
                record = sent.get(record_id)
                if record is None:
                    client = event["client"]
                    record = sent[record_id] = _Sent(client, value_hash, floor=floors.get(client))
                elif record.hash != value_hash:
                    verdict.contradictions.append(f"{record_id} was sent with two contents")
                record.attempts += 1
            continue
        if request not in under_way:
            verdict.contradictions.append(f"request {request} has the outcome {op} and was not under way")
            continue
        settled.add(request)
        for record_id in under_way.pop(request):
            record = sent[record_id]
            if op == "ok":
                record.is_acknowledged = True
                if (stands := places.get(record_id)) and not record_id.endswith(UNKEYED):
                    first = min((logged.partition, logged.offset) for logged in stands)
                    floors[record.client] = max(floors.get(record.client, first), first)
            elif op == "fail":
                record.refusals += 1
    return sent


def _judge(
    record_id: str, record: _Sent, stands: list[Logged], verdict: Verdict, may_repeat: bool, may_move: bool
) -> None:
    if record.is_acknowledged:
        verdict.acknowledged += 1
    elif record.refusals == record.attempts:
        verdict.refused += 1
    elif stands:
        verdict.unknown_found += 1
    else:
        verdict.unknown_missing += 1
    if not stands:
        if record.is_acknowledged:
            verdict.lost.append(f"{record_id} was acknowledged and is not in the topic")
        return
    where = ", ".join(_place(logged) for logged in stands)
    tries = record.attempts - record.refusals
    if tries == 0:
        verdict.denied.append(f"{record_id} at {where} was refused as not persisted")
    elif len(stands) > tries and not may_repeat:
        verdict.twice.append(f"{record_id} was sent {record.attempts} times and is at {where}")
    verdict.resent += (len(stands) if may_repeat else min(len(stands), max(tries, 1))) - 1
    for logged in stands:
        if hashlib.blake2b(logged.value, digest_size=8).hexdigest() != record.hash:
            verdict.altered.append(f"{record_id} at {_place(logged)} has other bytes than were sent")
    first = min((logged.partition, logged.offset) for logged in stands)
    if (
        record.floor is not None
        and not record_id.endswith(UNKEYED)
        and (first[1] <= record.floor[1] if first[0] == record.floor[0] else not may_move)
    ):
        verdict.out_of_order.append(
            f"{record_id} of client {record.client} is at {first[0]}/{first[1]}, the record acknowledged before it was "
            f"sent reaches {record.floor[0]}/{record.floor[1]}"
        )


def _place(logged: Logged) -> str:
    return f"{logged.partition}/{logged.offset}"
