"""Dead letters that are put back into their stream, each at most once, against a real Kafka: killed at each step, and two at
once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer

from strandline.core.errors import Conflict, Fenced, TransientError
from strandline.core.failpoints import REPLAY_FAILPOINTS
from strandline.core.record_headers import (
    HEADER_REPLAY_LETTER,
    HEADER_REPLAY_OF,
    HEADER_REPLAY_REPAIRED,
    HEADER_SOURCE,
    HEADER_WRITER,
    dead_letter_topic,
)
from strandline.ledger.ledger import Ledger
from strandline.log.kafka_status import KafkaStatus
from strandline.log.topics import Topics
from strandline.processing.emission.dead_letters import DeadLetter, DeadLetterWriter
from strandline.services.jobs.apply_documents import DocumentApplier
from strandline.services.jobs.dead_letters import DeadLetterFilter, DeadLetters, ReplayReport
from strandline.services.jobs.payload_edits import PayloadEdit
from strandline.services.processes.pids import PidFile
from tests.support.platform import Platform
from tests.support.topic_reader import read_messages, wait_until_readable
from tests.support.waiting import stretched, wait_until

pytestmark = pytest.mark.timeout(900)
RECORD_BYTES_MAX = 1_000_000
DOCUMENTS = """
stream: {name}
partitions: 2
schema: {{device: string, power: double, rated: double}}
key: device
mqtt: {{topics: ["site/{name}/+"], fields: {{device: 2}}}}
---
pipeline: {name}
input: {{stream: {name}}}
event_time: {{from: log}}
steps:
  - derive: {{load: power / rated}}
  - window: {{name: hour, tumbling: 1h, by: [device], aggregate: {{n: count(*)}}}}
    emit: [{{elasticsearch: {name}}}]
"""
ANY = DeadLetterFilter()


class ReplayLab:
    """A job with dead letters, without a run."""

    def __init__(self, kafka: str, directory: Path, name: str) -> None:
        self.kafka, self.name = kafka, name
        self.ledger_url = f"sqlite:///{directory / 'ledger.sqlite'}"
        self.ledger = Ledger.open(self.ledger_url)
        topics = Topics(kafka, replication=1, record_bytes_max=RECORD_BYTES_MAX)
        text = DOCUMENTS.format(name=name).encode()
        DocumentApplier(self.ledger, topics, lambda pipeline: None, lambda stream: {}).apply(text, "test.yaml")
        self.dead_letters = DeadLetters(self.ledger, KafkaStatus(kafka), kafka, RECORD_BYTES_MAX)

    def reject(self, values: list[bytes], reason: str = "decode", first: int = 0) -> None:
        """Write records to partition 0, from offset `first` on, and their dead letters."""
        producer = Producer({"bootstrap.servers": self.kafka, "enable.idempotence": True})
        headers = [(HEADER_SOURCE, f"mqtt:site/{self.name}/d7".encode()), (HEADER_WRITER, b"gateway")]
        for value in values:
            producer.produce(self.name, value, key=b"d7", partition=0, headers=headers)
        assert producer.flush(30) == 0
        letters = [
            DeadLetter.of_record(self.name, 0, first + at, value, reason, "why", "decode")
            for at, value in enumerate(values)
        ]
        self.write_and_wait(letters, f"{self.name}.w", epoch=1)

    def write_and_wait(self, letters: list[DeadLetter], slot: str, epoch: int) -> None:
        """Write dead letters in this slot and wait until they are readable, as a job does before it counts them."""
        writer = DeadLetterWriter(self.kafka, self.name, slot, epoch, lambda _: None, record_bytes_max=RECORD_BYTES_MAX)
        assert writer.write(letters, {0: 0}) == len(letters)
        wait_until_readable(self.kafka, dead_letter_topic(self.name))

    def replay(self, wanted: DeadLetterFilter = ANY, *, force: bool = False, dry_run: bool = False) -> ReplayReport:
        """All pieces together."""
        total = self.dead_letters.replay(self.name, wanted, -1, None, force=force, dry_run=dry_run)
        while total.after is not None:
            more = self.dead_letters.replay(self.name, wanted, total.after, total.before, force=force, dry_run=dry_run)
            for field in ("matched", "requeued", "requeued_before", "unknown", "skipped", "outcomes"):
                setattr(more, field, getattr(total, field) + getattr(more, field))
            total = more
        return total

    def requeued(self) -> list[tuple[bytes | None, int, dict[str, bytes]]]:
        """Return what was replayed: value, partition, headers."""
        found = read_messages(self.kafka, self.name, 2, isolation="read_committed")
        records = [(one.value(), one.partition(), dict(one.headers() or ())) for one in found]
        return [one for one in records if HEADER_REPLAY_OF in one[2]]


@pytest.fixture
def lab(kafka: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ReplayLab]:
    lab = ReplayLab(kafka, tmp_path, f"replay-{abs(hash(request.node.name)) % 1_000_000}")
    yield lab
    lab.ledger.close()


@pytest.mark.guarantee(
    "G225",
    "A dry run reports the outcome that the current version gives to the requeued records. A requeued record has the "
    "sender's bytes and headers, and names its dead letter.",
    promise="a-requeued-record-counts-once",
)
def test_all_that_match_are_put_back_once_with_their_bytes_and_say_where_they_come_from(lab: ReplayLab) -> None:
    good, broken = b'{"power": 4, "rated": 2}', b"no json"
    lab.reject([good, broken, b'{"power": 1, "rated": 0}'])
    lab.reject([b"late"], "late", first=3)
    dry = lab.replay(dry_run=True)
    # The device is in the MQTT topic, which a header of the original record contains.
    assert dry.outcomes == {"accepted": 1, "decode": 1, "expression": 1}
    assert (dry.matched, dry.requeued, dry.skipped) == (4, 3, {"late": 1})
    assert lab.requeued() == []
    done = lab.replay()
    assert (done.requeued, done.requeued_before, done.outcomes) == (3, 0, dry.outcomes)
    records = sorted(lab.requeued(), key=lambda one: one[2][HEADER_REPLAY_OF])
    assert [(value, partition) for value, partition, _ in records] == [
        (good, 0),
        (broken, 0),
        (b'{"power": 1, "rated": 0}', 0),
    ]
    assert records[1][2] == {
        HEADER_SOURCE: f"mqtt:site/{lab.name}/d7".encode(),
        HEADER_REPLAY_OF: f"{lab.name}/0/1".encode(),
        HEADER_REPLAY_LETTER: f"{lab.name}/1".encode(),
    }
    again = lab.replay()
    assert (again.requeued, again.requeued_before) == (0, 3)
    late = lab.replay(DeadLetterFilter(reason="late"))
    assert (late.requeued, late.outcomes) == (1, {"decode": 1})
    assert len(lab.requeued()) == 4


@pytest.mark.guarantee("G225")
def test_a_record_that_fails_again_is_traced_and_put_back_again_only_if_asked(lab: ReplayLab) -> None:
    lab.reject([b"no json"])
    lab.replay()
    (offset,) = [
        one.offset()
        for one in read_messages(lab.kafka, lab.name, 2, isolation="read_committed")
        if HEADER_REPLAY_OF in dict(one.headers() or ())
    ]
    letter = DeadLetter.of_record(lab.name, 0, offset or 0, b"no json", "decode", "why", "decode")
    lab.write_and_wait([letter], "w", epoch=2)
    second = lab.dead_letters.page(lab.name, ANY, -1, 10).letters[1]
    assert lab.dead_letters.origin_of(second) == f"{lab.name}/0/0"
    assert lab.replay().skipped == {"failed_again": 1}
    assert lab.replay(force=True).requeued == 1
    assert len(lab.requeued()) == 2


def test_a_letter_is_repaired_once(lab: ReplayLab) -> None:
    lab.reject([b"no json", b"nor this"])
    with pytest.raises(Conflict, match="would be rejected again"):
        lab.dead_letters.repair(lab.name, f"{lab.name}/0/1", b"{}", force=False, dry_run=False)
    mended = b'{"device": "d1", "power": 4, "rated": 2}'
    done = lab.dead_letters.repair(lab.name, f"{lab.name}/0/1", mended, force=False, dry_run=False)
    assert (done.letter, done.is_already, done.dry_run.outcome) == (1, False, "accepted")
    assert lab.dead_letters.repair(lab.name, "1", mended, force=False, dry_run=False).is_already
    assert lab.replay().requeued_before == 1
    values = {
        headers[HEADER_REPLAY_OF]: (value, HEADER_REPLAY_REPAIRED in headers) for value, _, headers in lab.requeued()
    }
    assert values == {f"{lab.name}/0/1".encode(): (mended, True), f"{lab.name}/0/0".encode(): (b"no json", False)}


@pytest.mark.guarantee(
    "G1100",
    "Dead letters that are edited together are requeued at most once each, and only those that the current version then "
    "accepts. The outcome of requeued records names those that the job has read, and those that are dead letters again.",
    promise="a-requeued-record-counts-once",
)
def test_letters_are_edited_together_and_their_outcome_follows_them(lab: ReplayLab) -> None:
    lab.reject([b'{"power": "4.5", "rated": 2}', b'{"power": "ERR", "rated": 2}', b'{"power": "1", "rated": 0}'])
    edits = [PayloadEdit("number", "power"), PayloadEdit("set", "device", value="d1")]

    def repair(*, dry_run: bool = False) -> ReplayReport:
        return lab.dead_letters.replay(lab.name, ANY, -1, None, force=False, dry_run=dry_run, edits=edits)

    dry = repair(dry_run=True)
    assert (dry.requeued, dry.skipped, dry.written) == (1, {"not_edited": 1, "rejected_again": 1}, [])
    assert [(one.number, one.outcome) for one in dry.repairs] == [(2, "expression"), (0, "accepted")]
    assert lab.requeued() == []
    done = repair()
    assert (done.requeued, done.outcomes) == (1, {"accepted": 1, "expression": 1})
    ((value, _, headers),) = lab.requeued()
    assert value == b'{"power": 4.5, "rated": 2, "device": "d1"}'
    assert headers[HEADER_REPLAY_REPAIRED] == b"1"
    again = repair()
    assert (again.requeued, again.requeued_before) == (0, 1)

    found = lab.dead_letters.requeued(lab.name, done.written, done.before)
    assert (found.waiting, found.accepted, dict(found.rejected), found.is_complete) == (1, 0, {}, True)
    (record,) = found.records
    assert (record.dead_letter, record.state) == (0, "waiting")
    letter = DeadLetter.of_record(lab.name, record.partition, record.offset, value or b"", "late", "why", "late")
    lab.write_and_wait([letter], "w", epoch=2)
    found = lab.dead_letters.requeued(lab.name, done.written, done.before)
    assert (found.waiting, dict(found.rejected)) == (0, {"late": 1})
    assert found.records[0].rejected_as == dry.before, "the first dead letter after those that were repaired"


REPLAY = """
import sys
from strandline.core.settings import Settings
from strandline.ledger.ledger import Ledger
from strandline.log.kafka_status import KafkaStatus
from strandline.services.jobs.dead_letters import DeadLetters, DeadLetterFilter
settings = Settings()
log = KafkaStatus(settings.kafka_bootstrap)
letters = DeadLetters(Ledger.open(settings.ledger_url), log, settings.kafka_bootstrap, 1_000_000)
letters.replay(sys.argv[1], DeadLetterFilter(), -1, None, force=False, dry_run=False)
"""


def replay_elsewhere(lab: ReplayLab, failpoints: str = "") -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "STRANDLINE_KAFKA_BOOTSTRAP": lab.kafka,
        "STRANDLINE_LEDGER_URL": lab.ledger_url,
        "STRANDLINE_FAILPOINTS": failpoints,
    }
    return subprocess.Popen([sys.executable, "-c", REPLAY, lab.name], env=environment, stderr=subprocess.PIPE)


@pytest.mark.long
@pytest.mark.guarantee(
    "G224",
    "A dead letter is requeued at most once, repaired or not, whatever is killed and however many requests run "
    "concurrently. In the end, each requested one is in the stream once.",
    promise="a-requeued-record-counts-once",
)
def test_a_replay_that_is_killed_anywhere_puts_nothing_back_twice(lab: ReplayLab) -> None:
    lab.reject([b"%d" % number for number in range(20)])
    for failpoint in REPLAY_FAILPOINTS:
        killed = replay_elsewhere(lab, f"{failpoint}=kill")
        _, said = killed.communicate(timeout=stretched(60))
        assert killed.returncode == -signal.SIGKILL, said
    done = lab.replay()
    assert done.requeued + done.requeued_before == 20 and done.unknown == 0
    assert Counter(headers[HEADER_REPLAY_OF] for _, _, headers in lab.requeued()) == {
        f"{lab.name}/0/{offset}".encode(): 1 for offset in range(20)
    }


@pytest.mark.guarantee("G224")
@pytest.mark.long
def test_two_at_once_put_each_back_once(lab: ReplayLab) -> None:
    lab.reject([b"%d" % number for number in range(200)])

    def replay(_: int) -> None:
        try:
            lab.replay()
        except (Fenced, TransientError):
            return  # the other process took over

    other = replay_elsewhere(lab)
    with ThreadPoolExecutor(2) as pool:
        while other.poll() is None:
            list(pool.map(replay, range(2)))
    other.communicate()
    lab.replay()
    assert Counter(headers[HEADER_REPLAY_OF] for _, _, headers in lab.requeued()) == {
        f"{lab.name}/0/{offset}".encode(): 1 for offset in range(200)
    }


# The whole story, with the real service, command line and job.

JOB = "mended"
STORY = f"""
stream: {JOB}-in
partitions: 3
schema: {{device: string, power: double, rated: double}}
key: device
---
pipeline: {JOB}
input: {{stream: {JOB}-in}}
event_time: {{from: log}}
steps:
  - derive: {{load: %s}}
  - window: {{name: day, tumbling: 1d, by: [device], aggregate: {{n: count(*)}}}}
    emit: [{{elasticsearch: {JOB}-day}}]
"""
ZERO, BROKEN, LACKING = 400, 350, 250
REPAIRED = 60


def command(platform: Platform, *arguments: str, given: bytes = b"") -> subprocess.Popen[bytes]:
    executable = Path(sys.executable).parent / "strandline"
    url = platform.stack.addresses.api_url
    process = subprocess.Popen(
        [str(executable), "dead-letters", *arguments, "--url", url, "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(given)
    process.stdin.close()
    process.stdin = None
    return process


def answer(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    out, err = process.communicate(timeout=stretched(120))
    assert process.returncode == 0, err.decode()
    found: dict[str, Any] = json.loads(out)
    return found


def kill_control(platform: Platform) -> None:
    """Kill the service, and start it again."""
    control = psutil.Process(PidFile(platform.stack.data_dir).all()["control"])
    control.kill()
    control.wait(stretched(60))
    platform.stack.start_control()


@pytest.mark.guarantee("G224")
@pytest.mark.long
def test_a_thousand_letters_are_repaired_and_put_back_with_kills_in_the_middle(platform: Platform) -> None:
    """The service and the command are killed at random moments.

    Each letter is replayed at most once, and exactly once in the end. The histogram of the dry run agrees with the
    outcome.
    """
    chance = random.Random(15)
    lines = [b'{"device":"d%d","power":%d,"rated":0}' % (n % 5, n) for n in range(ZERO)]
    lines += [b'{"device":"d%d","power":%d,"rated":}' % (n % 5, n) for n in range(BROKEN)]
    lines += [b'{"device":"d%d","rated":%d}' % (n % 5, n) for n in range(LACKING)]
    chance.shuffle(lines)
    platform.apply(STORY % "power / rated")
    platform.send(f"{JOB}-in", lines)
    platform.wait_for(JOB, lambda state: sum(state["counts"]["rejected"].values()) == 1_000, "through the bad records")
    platform.apply(STORY % "power + rated")
    platform.wait_for(JOB, lambda state: state["version"] == 2 and state["state"] == "running", "at the new version")

    counts = answer(command(platform, "list", JOB, "--counts"))
    assert counts["reasons"] == {"expression": ZERO, "decode": BROKEN, "schema": LACKING}
    letters = platform.control.dead_letters(JOB, limit=1_000)["dead_letters"]
    broken = [one for one in letters if one["reason"] == "decode"]
    places = [f"{one['stream']}/{one['partition']}/{one['offset']}" for one in broken[:REPAIRED]]
    mended = b'{"device":"repaired","power":1,"rated":1}'
    for number, place in enumerate(places):
        repairing = command(platform, "repair", JOB, place, "--payload", "-", given=mended)
        if number % 12 == 5:
            time.sleep(chance.random())  # sleeps: the instant of the kill
            repairing.kill()
            kill_control(platform)
        repairing.communicate()
    for place in places:
        answer(command(platform, "repair", JOB, place, "--payload", "-", given=mended))

    # The new version has recomputed the open day with the records that the version before could not use.
    expected = {"decode": BROKEN - REPAIRED, "schema": LACKING}
    dry = answer(command(platform, "requeue", JOB, "--dry-run"))
    assert (dry["outcomes"], dry["skipped"]) == (expected, {"counted": ZERO})
    assert (dry["requeued"], dry["requeued_before"]) == (BROKEN + LACKING - REPAIRED, REPAIRED)
    for reason in ("expression", "schema", "decode", "decode"):
        replaying = [command(platform, "requeue", JOB, "--reason", reason) for _ in range(2)]
        time.sleep(0.5 + 1.5 * chance.random())  # sleeps: the instant of the kill
        chance.choice(replaying).kill()
        kill_control(platform)
        for one in replaying:
            one.communicate()
    done = answer(command(platform, "requeue", JOB))
    assert done["requeued"] + done["requeued_before"] == BROKEN + LACKING and done["unknown"] == 0

    requeued = Counter(
        headers[HEADER_REPLAY_OF].decode() for _, headers in platform.topic(f"{JOB}-in") if HEADER_REPLAY_OF in headers
    )
    assert requeued == {
        f"{one['stream']}/{one['partition']}/{one['offset']}": 1 for one in letters if one["reason"] != "expression"
    }
    platform.wait_for(JOB, lambda state: state["lag_records"] == 0, "through what was put back")
    rejected = wait_until(
        lambda: platform.control.job(JOB)["counts"]["rejected"],
        lambda found: sum(found.values()) == 1_000 + BROKEN - REPAIRED + LACKING,
        "the second rejections",
    )
    assert rejected == {"expression": ZERO, "decode": 2 * BROKEN - REPAIRED, "schema": 2 * LACKING}
    again = answer(command(platform, "requeue", JOB))
    assert (again["requeued"], again["skipped"]) == (
        0,
        {"counted": ZERO, "failed_again": BROKEN - REPAIRED + LACKING},
    )
    platform.stop(JOB, drain=True)
    found = platform.documents(f"{JOB}-day").values()
    assert sum(one["n"] for one in found) == ZERO + REPAIRED
