"""The checker has teeth: each planted fault, alone, is found and named; what is right is never called wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.support.faults.checker import Logged, Verdict, check
from tests.support.faults.history import History

PARTITIONS = 3


@dataclass
class Run:
    """A made-up run of a gateway: the history of its senders, and the topic."""

    history: list[dict] = field(default_factory=list)
    topic: list[Logged] = field(default_factory=list)

    def check(self) -> Verdict:
        return check([json.dumps(event) for event in self.history], self.topic)

    def place(self, record_id: str) -> int:
        """Return the position in `topic` of the id's first record."""
        return next(n for n, logged in enumerate(self.topic) if json.loads(logged.value)["id"] == record_id)

    def acknowledged(self, random: random.Random) -> str:
        requests = {event["request"] for event in self.history if event["op"] == "ok"}
        ids = [r for e in self.history if e["op"] == "invoke" and e["request"] in requests for r in e["records"]]
        return random.choice(ids)

    def outcome(self, record_id: str) -> dict:
        request = next(e["request"] for e in self.history if e["op"] == "invoke" and record_id in e["records"])
        return next(e for e in self.history if e["op"] != "invoke" and e["request"] == request)


def a_right_run(directory: Path, seed: int, *, resends: bool = False) -> Run:
    """A run in which the gateway keeps its word: some requests refused, some unanswered and half of those persisted."""
    chance = random.Random(seed)
    history, run = History(directory / f"history-{seed}.jsonl"), Run()
    offsets = [0] * PARTITIONS

    def log(client: int, value: bytes) -> None:
        partition = client % PARTITIONS
        offsets[partition] += chance.choice((1, 1, 1, 2))  # a transaction's marker takes an offset
        run.topic.append(Logged(partition, offsets[partition], value))

    for number in range(60):
        client = chance.randrange(6)
        records = [
            (f"{number}-{n}", b'{"id":"%d-%d","client":%d}' % (number, n, client)) for n in range(chance.randint(1, 4))
        ]
        request = history.invoke(str(client), records)
        outcome = chance.choice(("ok", "ok", "ok", "ok", "fail", "kept", "gone", "open"))
        if outcome in ("ok", "kept"):
            for _, value in records:
                log(client, value)
        if outcome == "ok":
            history.ok(request)
        elif outcome == "fail":
            history.fail(request, "503 log_busy")
        elif outcome != "open":
            history.info(request, "connection lost")
            if resends:
                request = history.invoke(str(client), records)
                for _, value in records:
                    log(client, value)
                history.ok(request)
    history.close()
    run.history = [json.loads(line) for line in history.path.read_text().splitlines()]
    return run


@pytest.mark.parametrize("resends", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_a_right_run_passes(tmp_path, seed, resends):
    run = a_right_run(tmp_path, seed, resends=resends)
    verdict = run.check()
    assert verdict.violations == []
    assert verdict.sent == verdict.acknowledged + verdict.refused + verdict.unknown_found + verdict.unknown_missing
    assert verdict.logged == len(run.topic) == verdict.acknowledged + verdict.unknown_found + verdict.resent
    assert (verdict.resent > 0) == resends


def lose(run: Run, chance: random.Random) -> None:
    del run.topic[run.place(run.acknowledged(chance))]


def write_twice(run: Run, chance: random.Random) -> None:
    logged = run.topic[run.place(run.acknowledged(chance))]
    end = max(other.offset for other in run.topic if other.partition == logged.partition)
    run.topic.append(replace(logged, offset=end + 1))


def write_twice_what_nobody_heard_of(run: Run, chance: random.Random) -> None:
    known = {request for event in run.history if event["op"] == "info" for request in [event["request"]]}
    ids = [r for e in run.history if e["op"] == "invoke" and e["request"] in known for r in e["records"]]
    logged = run.topic[next(n for n, at in enumerate(run.topic) if json.loads(at.value)["id"] in ids)]
    run.topic.append(replace(logged, offset=logged.offset + 1_000_000))


def change_a_byte(run: Run, chance: random.Random) -> None:
    place = run.place(run.acknowledged(chance))
    value = run.topic[place].value
    run.topic[place] = replace(run.topic[place], value=value.replace(b'"client":', b'"client": '))


def change_the_id(run: Run, chance: random.Random) -> None:
    place = run.place(run.acknowledged(chance))
    run.topic[place] = replace(run.topic[place], value=b'{"id":"nobody\'s"}')


def break_the_value(run: Run, chance: random.Random) -> None:
    place = run.place(run.acknowledged(chance))
    run.topic[place] = replace(run.topic[place], value=run.topic[place].value[:-3])


def acknowledge_what_is_not_written(run: Run, chance: random.Random) -> None:
    logged = {json.loads(at.value)["id"] for at in run.topic}
    events = [e for e in run.history if e["op"] == "invoke" and not logged & e["records"].keys()]
    outcome = next(run.outcome(r) for e in events for r in e["records"] if e["request"] in _settled(run))
    outcome["op"] = "ok"


def refuse_what_is_written(run: Run, chance: random.Random) -> None:
    run.outcome(run.acknowledged(chance))["op"] = "fail"


def swap_two(run: Run, chance: random.Random) -> None:
    """Swap two records of one client, from two requests. The second was sent when the first was acknowledged."""
    known = {event["request"] for event in run.history if event["op"] == "ok"}
    ids = [next(iter(e["records"])) for e in run.history if e["op"] == "invoke" and e["request"] in known]
    places = [run.place(record_id) for record_id in ids]
    one = places[0]
    client = json.loads(run.topic[one].value)["client"]
    other = next(n for n in reversed(places) if json.loads(run.topic[n].value)["client"] == client)
    assert one != other
    first, second = run.topic[one], run.topic[other]
    run.topic[one], run.topic[other] = replace(first, value=second.value), replace(second, value=first.value)


def move_to_another_partition(run: Run, chance: random.Random) -> None:
    client = json.loads(run.topic[0].value)["client"]
    place = max(n for n, logged in enumerate(run.topic) if json.loads(logged.value)["client"] == client)
    logged = run.topic[place]
    run.topic[place] = replace(logged, partition=(logged.partition + 1) % PARTITIONS, offset=1_000_000)


def answer_twice(run: Run, chance: random.Random) -> None:
    run.history.append(dict(run.outcome(run.acknowledged(chance))))


def _settled(run: Run) -> set[int]:
    return {event["request"] for event in run.history if event["op"] != "invoke"}


FAULTS: list[tuple[Callable[[Run, random.Random], None], set[str]]] = [
    (lose, {"lost"}),
    (write_twice, {"twice"}),
    (write_twice_what_nobody_heard_of, {"twice"}),
    (change_a_byte, {"altered"}),
    (change_the_id, {"lost", "foreign"}),
    (break_the_value, {"lost", "foreign"}),
    (acknowledge_what_is_not_written, {"lost"}),
    (refuse_what_is_written, {"denied"}),
    (swap_two, {"out_of_order"}),
    (move_to_another_partition, {"out_of_order"}),
    (answer_twice, {"contradictions"}),
]


@pytest.mark.parametrize(("plant", "kinds"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
@pytest.mark.parametrize("seed", range(5))
def test_a_planted_fault_is_found(tmp_path, seed, plant, kinds):
    run = a_right_run(tmp_path, seed)
    plant(run, random.Random(seed))
    verdict = run.check()
    assert verdict.violations
    for kind in kinds:
        assert getattr(verdict, kind), (kind, str(verdict))
        assert kind in str(verdict)


def test_a_repeat_beyond_the_senders_own_is_found(tmp_path):
    run = a_right_run(tmp_path, 1, resends=True)
    repeated = next(
        e for e in reversed(run.history) if e["op"] == "invoke" and _times(run, next(iter(e["records"]))) == 2
    )
    record_id = next(iter(repeated["records"]))
    logged = run.topic[run.place(record_id)]
    for n in range(3 - sum(json.loads(at.value)["id"] == record_id for at in run.topic)):
        run.topic.append(replace(logged, offset=1_000_000 + n))
    assert [record_id in sentence for sentence in run.check().twice] == [True]


def _times(run: Run, record_id: str) -> int:
    return sum(event["op"] == "invoke" and record_id in event["records"] for event in run.history)


def test_one_id_with_two_contents_is_the_senders_fault_and_said(tmp_path):
    history = History(tmp_path / "history.jsonl")
    for value in (b"1", b"2"):
        history.ok(history.invoke("a", [("x", value)]))
    history.close()
    assert check(history.path.read_text().splitlines(), []).contradictions == ["x was sent with two contents"]


def test_what_a_broker_sends_again_is_counted_apart(tmp_path):
    run = a_right_run(tmp_path, 1)
    write_twice(run, random.Random(1))
    verdict = check([json.dumps(event) for event in run.history], run.topic, may_repeat=True)
    assert (verdict.violations, verdict.resent) == ([], 1)


def test_where_partitions_were_added_records_may_move_and_not_overtake(tmp_path):
    run = a_right_run(tmp_path, 1)
    move_to_another_partition(run, random.Random(1))
    assert run.check().out_of_order
    assert check([json.dumps(event) for event in run.history], run.topic, may_move=True).violations == []
    run = a_right_run(tmp_path, 2)
    swap_two(run, random.Random(1))
    assert check([json.dumps(event) for event in run.history], run.topic, may_move=True).out_of_order
