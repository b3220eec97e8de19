"""That a session exists, and that it is still known after the process was killed."""

import asyncio
import threading

import pytest

from strandline.core.errors import StackError
from strandline.ingest.mqtt import sessions as sessions_module
from strandline.ingest.mqtt.decoder import Connect
from strandline.ingest.mqtt.sessions import EXPIRY_S_MAX, SESSIONS_MAX, Sessions
from tests.support.waiting import stretched


class Clock:
    def __init__(self):
        self.now_s = 1_000_000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def open_sessions(tmp_path, clock):
    opened = []

    def again():
        opened.append(Sessions(tmp_path / "sessions", clock))
        return opened[-1]

    yield again
    for sessions in opened:
        sessions._thread.shutdown()  # as if killed: nothing more is written


def begin(sessions, client_id, *, clean=False, expiry_s=60):
    async def once():
        return await sessions.begin(client_id, Connect(5, client_id, clean, 0, session_expiry_s=expiry_s))

    return asyncio.run(once())


def test_a_session_is_there_when_its_client_comes_back_in_time(open_sessions, clock):
    sessions = open_sessions()
    assert begin(sessions, "a") == (False, 60)
    clock.now_s += 1_000  # as long as there is a connection there is a session
    assert begin(sessions, "a") == (True, 60)
    sessions.end("a", 60)
    clock.now_s += 59
    assert begin(sessions, "a") == (True, 60)
    sessions.end("a", 60)
    clock.now_s += 61
    assert begin(sessions, "a") == (False, 60)


@pytest.mark.parametrize("had_one", [False, True])
def test_what_can_not_be_written_changes_nothing(open_sessions, clock, monkeypatch, had_one):
    """The client is then refused: it must not receive, at its next CONNECT, a session that was never promised."""
    sessions = open_sessions()
    if had_one:
        begin(sessions, "a", expiry_s=100)
        sessions.end("a", None)
    with monkeypatch.context() as full:
        full.setattr(sessions_module, "_append", refuse)
        with pytest.raises(OSError, match="no space"):
            begin(sessions, "a", expiry_s=60)
    sessions.end("a", None)
    clock.now_s += 99
    assert begin(sessions, "a") == (had_one, 60)


def refuse(*_):
    raise OSError("no space left")


def test_a_clean_start_and_an_expiry_of_nought_leave_none(open_sessions):
    sessions = open_sessions()
    begin(sessions, "a")
    assert begin(sessions, "a", clean=True) == (False, 60)
    assert begin(sessions, "a") == (True, 60)
    sessions.end("a", 0)
    assert begin(sessions, "a", expiry_s=0) == (False, 0)
    assert begin(sessions, "a") == (False, 60)


def test_no_session_is_longer_than_allowed(open_sessions):
    assert begin(open_sessions(), "a", expiry_s=2**32 - 1) == (False, EXPIRY_S_MAX)


def test_after_a_kill_sessions_are_known(open_sessions, clock, tmp_path):
    sessions = open_sessions()
    begin(sessions, "open")
    begin(sessions, "ended")
    sessions.end("ended", 60)
    begin(sessions, 'n"\u00e9\n')  # brings the end of the other to disk
    begin(sessions, "none")
    begin(sessions, "none", clean=True, expiry_s=0)
    with (tmp_path / "sessions").open("ab") as file:
        file.write(b'["cut sho')
    clock.now_s += 30
    again = open_sessions()
    assert begin(again, "open") == (True, 60)
    assert begin(again, "ended") == (True, 60)
    assert begin(again, 'n"\u00e9\n') == (True, 60)
    assert begin(again, "none") == (False, 60)
    clock.now_s += 1_000
    assert begin(open_sessions(), "open") == (True, 60)  # its connection ended with the process, just now
    begin(open_sessions(), "x")
    clock.now_s += 61
    assert begin(open_sessions(), "ended") == (False, 60)


def test_a_line_cut_short_spoils_no_other(open_sessions, tmp_path):
    sessions = open_sessions()
    begin(sessions, "a")
    with (tmp_path / "sessions").open("ab") as file:
        file.write(b'["cut sho')
    begin(sessions, "b")
    again = open_sessions()
    assert begin(again, "a") == (True, 60)
    assert begin(again, "b") == (True, 60)


def test_many_at_once_share_few_writes(open_sessions, monkeypatch, tmp_path):
    sessions = open_sessions()
    syncs = []
    monkeypatch.setattr("os.fsync", syncs.append)

    async def all_at_once():
        connects = [Connect(5, f"c{n}", False, 0, session_expiry_s=60) for n in range(1_000)]
        return await asyncio.gather(*(sessions.begin(connect.client_id, connect) for connect in connects))

    assert asyncio.run(all_at_once()) == [(False, 60)] * 1_000
    assert len(syncs) < 10
    assert (tmp_path / "sessions").read_bytes().count(b"[") == 1_000


def connect(client_id):
    return Connect(5, client_id, False, 0, session_expiry_s=60)


def test_all_who_share_a_write_that_fails_are_told(open_sessions, monkeypatch):
    """While a write is under way three more clients connect: the next one is for all of them, and fails. The one behind it does
    not: so a session that is promised and not on disk is one that was lost."""
    sessions = open_sessions()
    begun, go_on = threading.Event(), threading.Event()
    append, written = sessions_module._append, []

    def fail_once(*of_write):
        begun.set()
        assert go_on.wait(stretched(20))
        written.append(of_write)
        if len(written) == 2:
            refuse()
        append(*of_write)

    async def story():
        first = asyncio.create_task(sessions.begin("first", connect("first")))
        assert await asyncio.to_thread(begun.wait, 20)
        later = [asyncio.create_task(sessions.begin(name, connect(name))) for name in ("a", "b", "c")]
        await asyncio.sleep(0)  # each has noted its session and waits
        go_on.set()
        assert await first == (False, 60)
        return await asyncio.gather(*later, return_exceptions=True)

    with monkeypatch.context() as full:
        full.setattr(sessions_module, "_append", fail_once)
        assert [type(answer) for answer in asyncio.run(story())] == [OSError] * 3
    assert [begin(sessions, name) for name in ("first", "a", "b", "c")] == [(True, 60)] + [(False, 60)] * 3
    again = open_sessions()
    assert [begin(again, name) for name in ("first", "a", "b", "c")] == [(True, 60)] * 4


@pytest.mark.parametrize("lines_spare_max", [100, 0], ids=["appended", "rewritten"])
@pytest.mark.parametrize("is_closed", [False, True])
def test_what_was_noted_before_a_write_that_failed_is_not_lost(open_sessions, monkeypatch, lines_spare_max, is_closed):
    """The end of a session waits for the next write; that one fails, and its client gets the error.

    The end is still on disk with the following write, or when the gateway ends.
    """
    monkeypatch.setattr("strandline.ingest.mqtt.sessions.LINES_SPARE_MAX", lines_spare_max)
    sessions = open_sessions()
    begin(sessions, "ended")
    sessions.end("ended", 0)
    with monkeypatch.context() as full:
        full.setattr(sessions_module, "_append", refuse)
        for _ in range(2):
            with pytest.raises(OSError, match="no space"):
                begin(sessions, "refused")
    if is_closed:
        sessions.close()
    else:
        begin(sessions, "other")
    again = open_sessions()
    assert [begin(again, name) for name in ("ended", "refused")] == [(False, 60)] * 2


def test_lines_that_can_not_be_written_are_bounded(open_sessions, monkeypatch):
    monkeypatch.setattr("strandline.ingest.mqtt.sessions.LINES_SPARE_MAX", 20)
    sessions = open_sessions()
    monkeypatch.setattr(sessions_module, "_append", refuse)
    for number in range(100):
        with pytest.raises(OSError, match="no space"):
            begin(sessions, f"c{number}")
        assert len(sessions._unwritten) <= 22


def test_the_number_of_sessions_and_the_file_are_bounded(open_sessions, monkeypatch, tmp_path):
    monkeypatch.setattr("strandline.ingest.mqtt.sessions.SESSIONS_MAX", 10)
    monkeypatch.setattr("strandline.ingest.mqtt.sessions.LINES_SPARE_MAX", 20)
    assert SESSIONS_MAX > 10
    sessions = open_sessions()
    for number in range(200):
        begin(sessions, f"c{number}")
    assert (tmp_path / "sessions").read_bytes().count(b"[") <= 31
    assert begin(sessions, "c199") == (True, 60)
    assert begin(sessions, "c0") == (False, 60)


def test_a_place_that_can_not_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StackError, match="can't be kept"):
        Sessions(tmp_path / "file" / "sessions")


def owner_of(name):
    return ("token", name) if name is not None else None


def begin_as(sessions, name, client_id):
    connects = Connect(5, client_id, False, 0, session_expiry_s=60)
    return asyncio.run(sessions.begin(client_id, connects, owner_of(name)))


def test_a_session_has_an_owner_until_it_ends(open_sessions, clock):
    sessions = open_sessions()
    assert sessions.owner("a") is None
    begin_as(sessions, "lundy", "a")
    sessions.end("a", 60, owner_of("lundy"))
    assert (sessions.owner("a"), sessions.owner("b")) == (owner_of("lundy"), None)
    assert begin_as(sessions, None, "b") == (False, 60)
    sessions = open_sessions()
    assert (sessions.owner("a"), sessions.owner("b")) == (owner_of("lundy"), None)
    clock.now_s += 61
    assert (sessions.owner("a"), open_sessions().owner("a")) == (None, None)


def test_a_session_of_an_owner_that_has_lost_its_identifier_ends(open_sessions, monkeypatch):
    sessions = open_sessions()
    begin_as(sessions, "lundy", "a")
    sessions.end("a", 60, owner_of("lundy"))
    with monkeypatch.context() as full:
        full.setattr(sessions_module, "_append", refuse)
        with pytest.raises(OSError, match="no space"):
            begin_as(sessions, "skye", "a")
    assert sessions.owner("a") == owner_of("lundy")
    assert begin_as(sessions, "skye", "a") == (False, 60)
    for present in (sessions, open_sessions()):
        assert present.owner("a") == owner_of("skye")
        assert len(present._expiry_s) == 1
    assert begin_as(sessions, "lundy", "a") == (False, 60)


@pytest.mark.guarantee(
    "G177",
    "A client, user, or address can use only a bounded part of the MQTT server: identifiers, sessions, connections, "
    "silence, unread answers. A user with few sessions loses none to a user with many, and one address can't keep "
    "another one out.",
    promise="no-client-can-exhaust-a-service",
)
@pytest.mark.parametrize(
    ("limit", "value"), [("SESSIONS_MAX", 10), ("NAMES_BYTES_MAX", 10 * (256 + 5 + 5))], ids=["number", "bytes"]
)
def test_who_has_the_most_sessions_loses_the_oldest(open_sessions, monkeypatch, limit, value):
    monkeypatch.setattr(f"strandline.ingest.mqtt.sessions.{limit}", value)
    sessions = open_sessions()
    for number in range(3):
        begin_as(sessions, "lundy", f"mine{number}")
    for number in range(50):
        begin_as(sessions, "thief", f"{number:0256}")
    assert all(begin_as(sessions, "lundy", f"mine{number}") == (True, 60) for number in range(3))
    assert begin_as(sessions, "thief", f"{49:0256}") == (True, 60)
    assert sum(map(len, sessions._of_owner.values())) == len(sessions._expiry_s) <= 13
    assert sessions._names_bytes == sum(len("".join([client_id, *owner])) for owner, client_id in sessions._expiry_s)


def test_a_session_without_an_owner_goes_to_the_first_client_with_its_identifier(open_sessions):
    """The listener asked for no login when it began."""
    assert begin_as(open_sessions(), None, "a") == (False, 60)
    assert begin_as(open_sessions(), "lundy", "a") == (True, 60)
    assert begin_as(open_sessions(), "thief", "a") == (False, 60)
