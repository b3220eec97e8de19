"""Putting records back, over a topic in memory: an attempt is killed at every step, and the next ones put each back once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from strandline.core.failpoints import REPLAY_FAILPOINTS
from strandline.core.record_headers import HEADER_REPLAY_OF, HEADER_WRITER
from strandline.ledger.ledger import Ledger
from strandline.ledger.replays import Replay, ReplayAttempt
from strandline.log.transactions import Entry
from strandline.processing.emission import requeue as module
from strandline.processing.emission.requeue import RequeueRecord, RequeueResult, requeue

IDENTITIES = [f"turbines/0/{number}" for number in range(5)]


class Killed(Exception):
    """Double of the end of the process."""


class Topic:
    """One partition. Serves as the index, and makes slots as Kafka and TransactionSlot behave."""

    def __init__(self) -> None:
        self.records: list[str] = ["other"] * 3
        self.start = 0
        self.killed_at = ""

    def ends_with_open(self, stream: str) -> dict[int, int]:
        return {0: len(self.records)}

    def starts(self, stream: str) -> dict[int, int]:
        return {0: self.start}

    def reach(self, name: str) -> None:
        if name == self.killed_at:
            raise Killed(name)

    def slot(self, ledger: Ledger, bootstrap: str, attempt: ReplayAttempt, bytes_max: int) -> Slot:
        return Slot(self, ledger, attempt)


class Slot:
    """A TransactionSlot over the topic."""

    def __init__(self, topic: Topic, ledger: Ledger, attempt: ReplayAttempt) -> None:
        self._topic, self._ledger, self._attempt = topic, ledger, attempt

    def there(self) -> frozenset[str]:
        self._topic.reach("replay.taken_over")
        self._ledger.require_replay(self._attempt)
        self._there = frozenset(self._topic.records[max(self._topic.start, self._attempt.since[0]) :])
        return self._there

    def write(self, entries: Sequence[Entry]) -> int:
        missing = [entry.identity for entry in entries if entry.identity not in self._there]
        self._topic.reach("replay.before_commit")
        self._topic.records += missing
        self._topic.reach("replay.committed")
        return len(missing)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield opened
    opened.close()


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    made = Topic()
    monkeypatch.setattr(module, "_slot", made.slot)
    monkeypatch.setattr(module, "failpoint", made.reach)
    return made


def put(ledger: Ledger, topic: Topic, identities: Sequence[str] = IDENTITIES) -> RequeueResult:
    records = [
        RequeueRecord(Replay(one, "power", number, is_repaired=False), b"x", None, 0, {})
        for number, one in enumerate(identities)
    ]
    return requeue(ledger, topic, "nowhere", "turbines", records, 1_000)  # type: ignore[arg-type]


def requeued_so_far(topic: Topic) -> Counter[str]:
    return Counter(one for one in topic.records if one != "other")


@pytest.mark.guarantee("G224")
@pytest.mark.parametrize("first", REPLAY_FAILPOINTS)
@pytest.mark.parametrize("second", REPLAY_FAILPOINTS)
def test_two_kills_put_nothing_back_twice(ledger: Ledger, topic: Topic, first: str, second: str) -> None:
    for topic.killed_at, some in ((first, IDENTITIES[:3]), (second, IDENTITIES[1:])):
        with pytest.raises(Killed):
            put(ledger, topic, some)
        topic.records += ["other"] * 2
    topic.killed_at = ""
    done = put(ledger, topic)
    assert done.now | done.before == set(IDENTITIES) and not done.now & done.before and not done.unknown
    assert requeued_so_far(topic) == Counter(IDENTITIES)
    again = put(ledger, topic)
    assert (again.now, again.before) == (set(), set(IDENTITIES))
    assert requeued_so_far(topic) == Counter(IDENTITIES)


def test_what_is_in_doubt_where_the_stream_is_gone_is_left_out(ledger: Ledger, topic: Topic) -> None:
    topic.killed_at = "replay.committed"
    with pytest.raises(Killed):
        put(ledger, topic, IDENTITIES[:2])
    topic.killed_at, topic.start = "", len(topic.records)
    done = put(ledger, topic)
    assert (done.unknown, done.now) == (set(IDENTITIES[:2]), set(IDENTITIES[2:]))
    assert put(ledger, topic).before == set(IDENTITIES)


@pytest.mark.guarantee("G224")
@pytest.mark.parametrize("killed_at", ["replay.intended", "replay.committed"])
def test_what_nobody_asks_for_again_is_decided_by_the_next_replay(ledger: Ledger, topic: Topic, killed_at: str) -> None:
    """The letter stayed in doubt permanently, so each replay read the stream from there.

    Once retention had removed that position, letters of another call that was killed before it wrote were considered
    replayed.
    """
    topic.killed_at = killed_at
    with pytest.raises(Killed):
        put(ledger, topic, IDENTITIES[:1])
    topic.records += ["other"] * 2
    decided = len(topic.records)
    topic.killed_at = "replay.intended"
    with pytest.raises(Killed):
        put(ledger, topic, IDENTITIES[1:3])
    is_sent = ledger.known_replays("turbines", IDENTITIES).get(IDENTITIES[0])
    assert is_sent is (True if killed_at == "replay.committed" else None), "an intent goes if nothing was written"
    topic.killed_at, topic.start = "", decided
    done = put(ledger, topic, IDENTITIES[1:])
    assert (done.now, done.unknown) == (set(IDENTITIES[1:]), set())
    assert put(ledger, topic).before >= set(IDENTITIES[1:])
    assert requeued_so_far(topic) == Counter(IDENTITIES)
    assert ledger.begin_replay("turbines", {0: 1_000}).since == {0: 1_000}, "nothing is in doubt"


def test_what_is_taken_for_put_back_without_being_asked_for_is_told(ledger: Ledger, topic: Topic) -> None:
    topic.killed_at = "replay.intended"
    with pytest.raises(Killed):
        put(ledger, topic, IDENTITIES[:1])
    topic.records += ["other"] * 2
    topic.killed_at, topic.start = "", len(topic.records)
    assert put(ledger, topic, IDENTITIES[1:]).unknown == set()
    (told,) = [event for event in ledger.events() if event.kind == "dead_letters_unknown"]
    assert told.facts == {"stream": "turbines", "identities": IDENTITIES[:1]}
    assert IDENTITIES[0] in told.message


def test_what_the_stream_holds_is_not_put_back_though_the_ledger_forgot_it(ledger: Ledger, topic: Topic) -> None:
    """For example after a kill before the first settlement, with a ledger that lost the last intents."""
    attempt = ledger.begin_replay("turbines", {0: 0})
    ledger.intend_replays(attempt, [Replay("turbines/9/9", "power", 9, is_repaired=False)])
    topic.records.append(IDENTITIES[0])
    done = put(ledger, topic)
    assert (done.before, done.now) == ({IDENTITIES[0]}, set(IDENTITIES[1:]))
    assert requeued_so_far(topic) == Counter(IDENTITIES)


def test_the_record_names_its_letter_and_no_gateway() -> None:
    headers = {"content-type": b"text", HEADER_WRITER: b"gateway", HEADER_REPLAY_OF: b"older"}
    record = RequeueRecord(Replay("turbines/0/7", "power", 3, is_repaired=True), b"x", b"k", 2, headers)
    assert record.entry == Entry(
        "turbines/0/7",
        b"x",
        b"k",
        [
            ("content-type", b"text"),
            (HEADER_REPLAY_OF, b"turbines/0/7"),
            ("strandline-replay-letter", b"power/3"),
            ("strandline-replay-repaired", b"1"),
        ],
        2,
    )
