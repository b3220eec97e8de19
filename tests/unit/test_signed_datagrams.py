"""Signed datagrams: the form, who is let in and why not, and that none is taken twice, whatever becomes of the process."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from strandline.access.authenticator import Authenticator
from strandline.access.signing import COUNTER_MAX, SIGNATURE_BYTES, is_signed_by, read_signed, sign
from strandline.access.tokens import digest_of, signing_key_of
from strandline.core.errors import InvalidDocument, StackError
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.udp.counters import COUNTERS_FILE, WINDOW_COUNTERS, Counters
from strandline.ingest.udp.signed_senders import SignedSenders
from strandline.ledger.states import TokenRow
from tests.support.tokens import ToldBook

ROOT = Path(__file__).parents[2]
STREAM = "turbines"
SECRET = "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789-_abcde"
TOKEN = f"sl_0123456789abcdef_{SECRET}"
ROW = TokenRow(
    "0123456789abcdef", "turbine-17", digest_of(SECRET.encode()), None, [STREAM], 0, "the test", None, None, None, None
)
KEY = signing_key_of(ROW)
NOW_US = 1_700_000_000_000_000
MINUTE_US = 60_000_000


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("signed_udp", ROOT / "examples" / "signed_udp.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def datagram(payload: bytes = b"{}", counter: int = NOW_US, stream: str = STREAM, key: bytes = KEY) -> bytes:
    return sign(payload, stream=stream, token_id=ROW.id, key=key, counter=counter)


def test_the_datagrams_in_the_docs_are_right_and_the_example_makes_the_same() -> None:
    text = (ROOT / "strandline" / "ingest" / "udp" / "page.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `([^`]*)` \| `([0-9a-f]+)` \|$", text, re.MULTILINE)
    assert len(rows) == 3 and TOKEN in text and KEY.hex() in text
    for counter, payload, expected in rows:
        assert datagram(payload.encode(), int(counter)).hex() == expected
        assert example().signed(payload.encode(), STREAM, TOKEN, int(counter)).hex() == expected


def test_a_datagram_says_who_sent_it_and_each_bit_of_it_counts() -> None:
    whole = datagram(b"payload", COUNTER_MAX)
    signed = read_signed(whole)
    assert signed is not None
    assert (signed.token_id, signed.counter, signed.payload) == (ROW.id, COUNTER_MAX, b"payload")
    assert is_signed_by(signed, STREAM.encode(), KEY)
    assert not is_signed_by(signed, b"other", KEY), "it can't be turned to another stream"
    assert not is_signed_by(signed, STREAM.encode(), b"\0" * 32)
    for place in range(len(whole)):
        changed = read_signed(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert changed is None or not is_signed_by(changed, STREAM.encode(), KEY), place
    for size in range(SIGNATURE_BYTES):
        assert read_signed(whole[:size]) is None
    empty = read_signed(datagram(b""))
    assert empty is not None and is_signed_by(empty, STREAM.encode(), KEY)


def test_stream_and_payload_are_told_apart() -> None:
    """A signature for stream `turbines` with payload `0...` is not valid for a stream `turbines0`."""
    signed = read_signed(datagram(b"0\0rest"))
    assert signed is not None and not is_signed_by(signed, b"turbines\x000", KEY)


class Gate:
    """The senders of the stream, at a time that a test sets."""

    def __init__(self, directory: Path, *, max_age: str = "5m", row: TokenRow = ROW, senders_max: int = 50_000) -> None:
        self.book = ToldBook()
        self.book.add(row)
        self.now_us = NOW_US
        self.tokens = Authenticator(
            self.book, look_s=1, kept_s=100, clock_s=lambda: self.now_us / 1e6, now_s=lambda: self.now_us / 1e6
        )
        self.directory = directory
        self.spec = StreamSpec.from_document(
            {"stream": STREAM, "schema": {"n": "long"}, "udp": {"port": 8082, "hmac": {"max_age": max_age}}}
        )
        self.open_counters(senders_max)

    def open_counters(self, senders_max: int = 50_000) -> None:
        self.counters = Counters(self.directory, senders_max=senders_max)
        self.senders = SignedSenders(
            self.spec, self.tokens, self.counters, now_us=lambda: self.now_us, clock_s=lambda: self.now_us / 1e6
        )

    def says(self, *datagrams: bytes) -> list[str]:
        """Return for each datagram its sender, or the reason why it is refused."""
        said = []
        for one in datagrams:
            taken, refused = self.senders.open([one], "192.0.2.1")
            assert len(taken) + len(refused) == 1
            said += [*taken, *refused]
        return said


def play(directory: Path, script: Callable[[Gate], None], **settings: object) -> Gate:
    gate = Gate(directory, **settings)  # type: ignore[arg-type]

    async def run() -> None:
        await gate.tokens.look()
        script(gate)
        await gate.counters.close()

    try:
        asyncio.run(run())
    finally:
        gate.tokens.close()
    return gate


@pytest.mark.guarantee(
    "G420",
    "A stream with `udp: {hmac: ...}` accepts a datagram only if the holder of a valid token with the right to write "
    "signed it for this stream. It accepts each one once, through kills, so recordings can't be replayed. Refusals "
    "are counted by reason and not answered, and senders use bounded memory.",
    promise="each-operation-requires-its-right",
)
def test_each_reason_has_its_word_and_what_is_right_is_taken_under_its_principal(tmp_path: Path) -> None:
    def script(gate: Gate) -> None:
        unknown = sign(b"{}", stream=STREAM, token_id="f" * 16, key=KEY, counter=NOW_US)
        assert gate.says(b"", b"{}", b"SLS1" + bytes(31), b"SLS0" + datagram()[4:]) == ["unsigned"] * 4
        assert gate.says(unknown) == ["unknown_key"]
        wrong = [datagram(key=b"\0" * 32), datagram(stream="other"), datagram()[:-1] + b"]"]
        assert gate.says(*wrong) == ["wrong_signature"] * 3
        assert gate.says(datagram(counter=NOW_US - 5 * MINUTE_US - 1), datagram(counter=0)) == ["stale"] * 2
        assert gate.says(datagram(counter=NOW_US + 5 * MINUTE_US + 1), datagram(counter=COUNTER_MAX)) == ["early"] * 2
        assert len(gate.counters) == 0, "nothing is kept of what was refused"
        assert gate.book.used_ms == {}
        taken, refused = gate.senders.open([datagram(b"a"), datagram(b"b", NOW_US + 1), datagram(b"a")], "192.0.2.1")
        assert (taken, dict(refused)) == ({"turbine-17": [b"a", b"b"]}, {"replayed": 1})

    play(tmp_path, script)


def test_rights_and_validity_are_those_of_the_token(tmp_path: Path) -> None:
    def without_the_right(gate: Gate) -> None:
        assert gate.says(datagram()) == ["forbidden"]

    play(tmp_path, without_the_right, row=replace(ROW, writes=["another-stream"]))

    def script(gate: Gate) -> None:
        assert gate.says(datagram()) == ["turbine-17"]
        gate.now_us += 2_000_000
        assert gate.says(datagram(counter=gate.now_us)) == ["unknown_key"], "it has expired"

    play(tmp_path, script, row=replace(ROW, writes=["*"], expires_ms=NOW_US // 1_000 + 1_000))


def test_while_the_ledger_is_away_for_too_long_the_reason_says_so(tmp_path: Path) -> None:
    def script(gate: Gate) -> None:
        gate.now_us += 101_000_000
        gate.tokens.forget_old()
        assert gate.says(datagram(counter=gate.now_us)) == ["keys_unavailable"]

    play(tmp_path, script)


def test_a_revoked_token_signs_nothing_after_the_next_look(tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    async def run() -> None:
        await gate.tokens.look()
        assert gate.says(datagram()) == ["turbine-17"]
        await gate.tokens.look()
        assert set(gate.book.used_ms) == {ROW.id}, "the ledger learns when it was used"
        gate.book.revoke(ROW.id)
        await gate.tokens.look()
        assert gate.says(datagram(counter=NOW_US + 1)) == ["unknown_key"]
        await gate.counters.close()

    asyncio.run(run())
    gate.tokens.close()


@pytest.mark.guarantee("G420")
def test_datagrams_may_overtake_each_other_and_none_is_taken_twice(tmp_path: Path) -> None:
    def script(gate: Gate) -> None:
        late, rest = NOW_US + 1_000, [NOW_US + 7 * n for n in range(WINDOW_COUNTERS - 1)]
        order = [*rest[1::2], *rest[::2], late]
        assert gate.says(*(datagram(counter=counter) for counter in order)) == ["turbine-17"] * WINDOW_COUNTERS
        assert gate.says(*(datagram(counter=counter) for counter in order)) == ["replayed"] * WINDOW_COUNTERS
        assert gate.says(datagram(counter=NOW_US - 1)) == ["replayed"], "older than the oldest that is remembered"
        assert gate.says(datagram(counter=NOW_US + 1)) == ["turbine-17"], "between two that came"

    play(tmp_path, script)


def test_without_an_age_counters_need_not_be_times(tmp_path: Path) -> None:
    def script(gate: Gate) -> None:
        counters = (1 << 32 | 0, 1 << 32 | 1, 2 << 32 | 0, 1 << 32 | 1, 2 << 32 | 1)
        said = gate.says(*(datagram(counter=counter) for counter in counters))
        assert said == ["turbine-17"] * 3 + ["replayed", "turbine-17"]

    play(tmp_path, script, max_age="forever")


@pytest.mark.guarantee("G420")
def test_what_was_saved_is_not_taken_again_by_a_process_that_comes_after_a_kill(tmp_path: Path) -> None:
    """The file is read as a kill at this moment leaves it: copied while the first process holds it open."""
    gate = Gate(tmp_path)

    async def first() -> None:
        await gate.tokens.look()
        assert gate.says(datagram(), datagram(counter=NOW_US + 5)) == ["turbine-17"] * 2
        await gate.counters.saved()
        assert gate.says(datagram(counter=NOW_US + 9)) == ["turbine-17"], "this one is not saved, nor in the log"
        copy_as_killed(tmp_path, tmp_path / "killed")
        await gate.counters.close()

    asyncio.run(first())
    gate.directory = tmp_path / "killed"
    gate.open_counters()
    again = [datagram(), datagram(counter=NOW_US + 5), datagram(counter=NOW_US + 9), datagram(counter=NOW_US + 3)]
    assert gate.says(*again) == ["replayed", "replayed", "turbine-17", "turbine-17"]
    asyncio.run(gate.counters.close())
    gate.tokens.close()


def copy_as_killed(directory: Path, killed: Path) -> None:
    killed.mkdir()
    for path in directory.glob(f"{COUNTERS_FILE}*"):
        (killed / path.name).write_bytes(path.read_bytes())


def test_a_save_holds_what_was_taken_before_it_was_asked_for(tmp_path: Path) -> None:
    async def run() -> None:
        counters = Counters(tmp_path)
        on_disk = sqlite3.connect(tmp_path / COUNTERS_FILE)

        async def take_and_save(number: int) -> None:
            counters.take(b"%d" % number, number)
            await counters.saved()
            rows = {sender for (sender,) in on_disk.execute("SELECT sender FROM senders")}
            assert b"%d" % number in rows

        await asyncio.gather(*(take_and_save(number) for number in range(200)))
        await counters.close()
        on_disk.close()

    asyncio.run(run())


@pytest.mark.guarantee("G420")
def test_who_was_heard_longest_ago_is_forgotten_over_the_limit_on_disk_too(tmp_path: Path) -> None:
    async def run() -> None:
        counters = Counters(tmp_path, senders_max=2)
        for sender in (b"a", b"b"):
            assert counters.take(sender, 1)
        await counters.saved()
        assert counters.take(b"a", 2) and counters.take(b"c", 1) and len(counters) == 2
        await counters.close()
        counters = Counters(tmp_path)
        assert len(counters) == 2
        assert not counters.take(b"a", 2) and not counters.take(b"c", 1) and counters.take(b"b", 1)
        await counters.close()

    asyncio.run(run())


def test_a_disk_that_refuses_is_said_once_and_records_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        counters = Counters(tmp_path)
        other = sqlite3.connect(tmp_path / COUNTERS_FILE, isolation_level=None)
        counters._connection.execute("PRAGMA busy_timeout = 0")
        other.execute("BEGIN IMMEDIATE")
        for counter in (1, 2):
            assert counters.take(b"a", counter)
            await counters.saved()
        assert caplog.text.count("counters_unsaved") == 1
        other.execute("ROLLBACK")
        await counters.saved()
        assert other.execute("SELECT count(*) FROM senders").fetchone() == (1,), "saved as soon as the disk takes it"
        other.close()
        await counters.close()

    asyncio.run(run())


def test_a_file_that_holds_no_counters_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / COUNTERS_FILE).write_text("no database" * 100)
    with pytest.raises(StackError, match=r"can't be read.*remove"):
        Counters(tmp_path)


def test_refusals_are_told_now_and_then_with_their_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def script(gate: Gate) -> None:
        for _ in range(5):
            gate.says(b"no signature")
        gate.now_us += 61_000_000
        gate.says(b"no signature")

    play(tmp_path, script)
    told = [line for line in caplog.text.splitlines() if "datagrams_refused" in line]
    assert [re.findall(r"datagrams=(\d+)", line) for line in told] == [["1"], ["5"]]


@pytest.mark.parametrize("hmac", [{"max_age": "500ms"}, {"max_age": "0s"}, {"key": "secret"}, True])
def test_a_document_that_asks_for_what_is_not_is_refused(hmac: object) -> None:
    with pytest.raises(InvalidDocument):
        StreamSpec.from_document({"stream": STREAM, "schema": {"n": "long"}, "udp": {"port": 1, "hmac": hmac}})


def test_the_examples_counter_never_falls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, now_ns = example(), [NOW_US * 1_000]
    monkeypatch.setattr(module.time, "time_ns", lambda: now_ns[0])
    file = tmp_path / "counter"
    first = module.Counter(file)
    said = [first.next(), first.next()]
    now_ns[0] -= 3_600_000_000_000
    said.append(first.next())
    said.append(module.Counter(file).next())
    assert said == sorted(set(said)) and said[0] == NOW_US
