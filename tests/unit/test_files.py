"""Files as records: which rows a file holds, and which file it is."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import errno
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from backports import zstd
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from pyarrow import parquet

from strandline.core.errors import Conflict, LogUnavailable, RecordTooLarge, StackError
from strandline.core.files import text_rows
from strandline.core.files.text_rows import BYTE_ORDER_MARK, TOO_LONG, UnreadableFile
from strandline.core.settings import Settings
from strandline.core.streams.stream import StreamSpec
from strandline.ingest.append.attempts import Decision, Outcome
from strandline.ingest.append.writer_identity import WriterIdentity
from strandline.ingest.files import file_ingest
from strandline.ingest.files.file_ingest import FileIngest, Taken
from strandline.ingest.files.journal import FileAttempt, Journal
from strandline.ingest.files.rows import rows_of
from strandline.services.cli import ingest_verbs
from strandline.services.cli.ingest_verbs import Failure, _paths
from tests.support.examples import examples

SCHEMA = {"a": "string?", "b": "double?"}
PACK = {"": bytes, ".gz": gzip.compress, ".zst": zstd.compress}


def spec(**more: Any) -> StreamSpec:
    return StreamSpec.from_document({"stream": "s", "schema": SCHEMA, **more})


def rows(path: Path, stream: StreamSpec | None = None, record_bytes_max: int = 50) -> list[Any]:
    return [row for row, _ in rows_of(path, stream or spec(), path.stat().st_size, record_bytes_max, lambda _: None)]


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=80).map(lambda line: line.replace(b"\n", b"")), max_size=30), st.booleans())
@example(lines=[BYTE_ORDER_MARK], is_ended=False)
@example(lines=[BYTE_ORDER_MARK + b"1", BYTE_ORDER_MARK, b"\x1a"], is_ended=True)
def test_each_line_is_a_row_however_the_file_is_packed(tmp_path: Path, lines: list[bytes], is_ended: bool) -> None:
    text = b"\n".join(lines) + b"\n" * is_ended
    # A mark at the begin of the file, and the end of a file in DOS, are no content.
    lines = [line if at else line.removeprefix(BYTE_ORDER_MARK) for at, line in enumerate(lines)]
    kept = [line.removesuffix(b"\r") for line in lines if line.strip(b" \t\r\n\x0b\x0c\x1a") or len(line) > 51]
    for suffix, pack in PACK.items():
        path = tmp_path / f"f.ndjson{suffix}"
        path.write_bytes(pack(text))
        found = rows(path)
        assert [row if isinstance(row, bytes) else None for row in found] == [
            line if len(line) <= 50 else None for line in kept
        ]


def test_members_that_were_packed_one_by_one_are_one_file(tmp_path: Path) -> None:
    for suffix, pack in (("gz", gzip.compress), ("zst", zstd.compress)):
        path = tmp_path / f"f.ndjson.{suffix}"
        path.write_bytes(pack(b"1\n2") + pack(b"3\n"))
        assert rows(path) == [b"1", b"23"]


@pytest.mark.parametrize("content", [b"", b"no such thing", gzip.compress(b"1\n2\n" * 1_000, mtime=0)[:-9]])
@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_packed_file_that_is_broken_is_refused(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"f.ndjson{suffix}"
    path.write_bytes(content)
    with pytest.raises(UnreadableFile, match=r"can't be decompressed|truncated"):
        rows(path)


def test_a_line_longer_than_a_record_costs_no_memory_and_no_neighbour(tmp_path: Path) -> None:
    path = tmp_path / "f.txt.gz"
    path.write_bytes(gzip.compress(b"1\n" + b"x" * 50_000_000 + b"\n2", mtime=0))
    assert rows(path) == [b"1", TOO_LONG, b"2"]


AVRO = StreamSpec.model_construct(stream="s", format="avro")
SPARKPLUG = StreamSpec.model_construct(stream="s", format="sparkplug")
CSV = {"format": "csv", "csv": {"delimiter": ";", "columns": ["b", "a"]}}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'b;"A"\r\n1;x\n2;y\n', [b"1;x", b"2;y"]),
        (b"\xef\xbb\xbfb; a\n1;x", [b"1;x"]),
        (b"1;x\n2;y", [b"1;x", b"2;y"]),
        (b'b;a\n1;"x\ny"\n2;z', [b'1;"x\ny"', b"2;z"]),
        (b'1;"x"";\ny"\n2;z', [b'1;"x"";\ny"', b"2;z"]),
        (b'"1\n"";2";"x\n"\n2;z', [b'"1\n"";2";"x\n"', b"2;z"]),
        (b'1;12" pipe\n2;"9"" pipe"\n3;x"y"z"\n4;""\n', [b'1;12" pipe', b'2;"9"" pipe"', b'3;x"y"z"', b'4;""']),
        (b'1;"x"y"\n2;z', [b'1;"x"y"', b"2;z"]),
        (b'1;x\n2;"y\n3', [b"1;x", b'2;"y\n3']),
        (b'1;"x\n\n \ny"\n\n \n2;z\n', [b'1;"x\n\n \ny"', b"2;z"]),
        (b'b;a\r\n1;"x\r\n\r\ny"\r\n\r\n2;z\r\n', [b'1;"x\r\n\r\ny"', b"2;z"]),
        (b"", []),
        (b"b;a\n", []),
    ],
)
def test_lines_of_csv_stand_behind_their_header(tmp_path: Path, text: bytes, found: list[bytes]) -> None:
    (tmp_path / "f.csv").write_bytes(text)
    assert rows(tmp_path / "f.csv", spec(**CSV)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'1;"open\n2;x\n3;yy\n4;zzzzzzz\n', [b'1;"open', b"2;x", b"3;yy", b"4;zzzzzzz"]),
        (b'1;"open\n\n2;x\r\n \n4;zzzzzzzzzzz\n', [b'1;"open', b"2;x", b"4;zzzzzzzzzzz"]),
        (b'1;"0123456789012345"\r\n2;x', [b'1;"0123456789012345"', b"2;x"]),
        (b'1;"open\nx;x\n2";"yyyyy\ny"\n4;z\n', [b'1;"open', b"x;x", b'2";"yyyyy\ny"', b"4;z"]),
        (b'1;"open\nxxxxxxxxxxxx"\n4;z\n', [b'1;"open', b'xxxxxxxxxxxx"', b"4;z"]),
        (b'1;"' + b"x" * 30 + b'\n2;y\n"', [TOO_LONG, b"2;y", b'"']),
        (b'1;"open\n2;y\n' + b"x" * 99 + b"\n3;z", [b'1;"open', b"2;y", TOO_LONG, b"3;z"]),
        (b'x";"\n' * 40, [b'x";"'] * 36 + [b"\n".join([b'x";"'] * 4)]),
    ],
)
def test_a_quote_that_is_not_closed_within_a_record_costs_no_other_row(
    tmp_path: Path, text: bytes, found: list[bytes]
) -> None:
    (tmp_path / "f.csv").write_bytes(text)
    assert rows(tmp_path / "f.csv", spec(**CSV), record_bytes_max=20) == found


@pytest.mark.parametrize("line", [b'x";"', b'1;"', b"1;x"])
def test_each_line_of_a_long_row_is_looked_at_no_more_than_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    looked_at = []
    ends_in_quotes = text_rows._ends_in_quotes
    monkeypatch.setattr(
        text_rows,
        "_ends_in_quotes",
        lambda line, *at, **more: looked_at.append(line) or ends_in_quotes(line, *at, **more),
    )
    (tmp_path / "f.csv").write_bytes(b'0;"\n' + (line + b"\n") * 3_000)
    rows(tmp_path / "f.csv", spec(**CSV), record_bytes_max=2_000)
    assert len(looked_at) <= 2 * 3_001


@pytest.mark.parametrize(
    ("name", "content", "stream", "part"),
    [
        ("f.csv", b"a;b\n1;2", spec(**CSV), "expects b, a"),
        ("f.csv", b"a,b\n1,2", spec(), "has the format json, not csv"),
        ("f.parquet", b"PAR1", spec(), "can't be read as Parquet"),
        ("f.parquet", b"PAR1", spec(**CSV), "become JSON objects"),
        ("f.bin", b"\x81", spec(format="cbor"), "send them by HTTP"),
        ("f.avro", b"Obj\x01", AVRO, "send them by HTTP"),
        ("f.bin", b"\x0a", SPARKPLUG, "send them by MQTT"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, name: str, content: bytes, stream: StreamSpec, part: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableFile, match=part):
        rows(tmp_path / name, stream)


def test_rows_of_parquet_become_json_objects(tmp_path: Path) -> None:
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    table = pa.table({"a": ["x", None], "b": [1.5, 2.0], "at": [at, at], "raw": [b"\xff", b""], "l": [[1], []]})
    parquet.write_table(table, tmp_path / "f.parquet")
    found = rows(tmp_path / "f.parquet", record_bytes_max=1_000)
    assert [json.loads(row) for row in found] == [
        {"a": "x", "b": 1.5, "at": "2026-01-01T00:00:00Z", "raw": "/w==", "l": [1]},
        {"a": None, "b": 2.0, "at": "2026-01-01T00:00:00Z", "raw": "", "l": []},
    ]
    assert rows(tmp_path / "f.parquet", record_bytes_max=10) == [TOO_LONG] * 2


def test_a_time_of_parquet_that_is_none_makes_the_file_unreadable(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"at": pa.array([2**60], pa.timestamp("us"))}), tmp_path / "f.parquet")
    with pytest.raises(UnreadableFile, match="can't be read as Parquet: a time is beyond the years 1 to 9999"):
        rows(tmp_path / "f.parquet")


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    one = Journal(tmp_path / "files.sqlite")
    yield one
    one.close()


def note(journal: Journal, file: int, rows_done: int) -> None:
    attempt = FileAttempt(file, rows_done, 7, 1, 2, {0: 5}, rows_done)
    journal.begin(attempt)
    assert journal.attempt() == attempt
    journal.end(attempt, is_in_log=True)
    assert journal.attempt() is None


@pytest.mark.guarantee("G305")
@pytest.mark.parametrize("size", [1, 100, 5_000, 3_000_000])
def test_a_file_is_what_it_holds(tmp_path: Path, journal: Journal, size: int) -> None:
    one, other = tmp_path / "a", tmp_path / "b"
    one.write_bytes(b"x" * size)
    first = journal.file(one)
    assert (first.bytes, first.rows) == (size, 0)
    note(journal, first.id, 3)
    one.rename(other)
    assert journal.file(other) == journal.file(other)
    assert (journal.file(other).identity, journal.file(other).rows, journal.file(other).line_next) == (
        first.identity,
        3,
        3,
    )
    other.write_bytes(b"x" * size + b"more")
    grown = journal.file(other)
    assert (grown.identity, grown.bytes, grown.rows) == (first.identity, size + 4, 3)
    other.write_bytes(b"y" + b"x" * size)
    assert journal.file(other).rows == 0
    other.write_bytes(b"x" * size + b"more")
    assert journal.file(other, again="8").identity == journal.file(other, again="8").identity != first.identity


def test_an_empty_file_is_the_beginning_of_no_other(tmp_path: Path, journal: Journal) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"")
    empty = journal.file(path)
    path.write_bytes(b"1")
    assert journal.file(path).identity != empty.identity


def test_an_attempt_that_did_not_arrive_leaves_its_rows_to_do(tmp_path: Path, journal: Journal) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1")
    file = journal.file(path)
    attempt = FileAttempt(file.id, 9, 7, 1, 2, {}, 9)
    journal.begin(attempt)
    journal.end(attempt, is_in_log=False)
    assert (journal.file(path).rows, journal.attempt()) == (0, None)
    journal.pass_over(file.id, 4, 5)
    assert (journal.file(path).rows, journal.file(path).line_next) == (4, 5)


def test_a_watched_folder_gives_each_file_that_rests_and_again_when_it_changed(tmp_path: Path) -> None:
    for name in ("b.ndjson", "a.csv.gz", "note.md", ".part.ndjson", "c.ndjson.tmp"):
        (tmp_path / name).write_bytes(b"1")
    (tmp_path / "folder.csv").mkdir()
    paths = _paths([tmp_path / "first"], tmp_path, 0, {})
    expected = [tmp_path / "first", tmp_path / "a.csv.gz", tmp_path / "b.ndjson", None, None]
    assert [next(paths) for _ in expected] == expected
    (tmp_path / "b.ndjson").write_bytes(b"12")
    assert [next(paths), next(paths)] == [tmp_path / "b.ndjson", None]
    assert next(_paths([], tmp_path, 3_600, {})) is None


class TroubledIngest:
    """Double of FileIngest: the disk fails at the first two tries of one file, and another one is broken."""

    def __init__(self, stderr: Callable[[], str]) -> None:
        self.tries: list[str] = []
        self.told: list[str] = []
        self._stderr = stderr

    def __call__(self, *_: object, **__: object) -> TroubledIngest:
        return self

    async def __aenter__(self) -> TroubledIngest:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""

    async def take(self, path: Path, on_progress: object, *, again: bool) -> Taken:
        self.tries.append(path.name)
        self.told.append(self._stderr())
        if path.name == "broken.ndjson.gz":
            raise UnreadableFile(f"{path} is truncated: its .gz data don't end")
        if self.tries.count(path.name) < 3:
            raise OSError(errno.ESTALE, "Stale file handle")
        return Taken(1, 0, 0)


def test_a_watched_file_that_the_disk_does_not_give_is_told_at_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that is broken is tried again only when it has changed."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("broken.ndjson.gz", "stale.ndjson"):
        (folder / name).write_bytes(b"1")
    double = TroubledIngest(lambda: capsys.readouterr().err)
    rests = iter(range(3))

    async def rest(_: float) -> None:
        if next(rests, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(file_ingest, "FileIngest", double)
    monkeypatch.setattr(ingest_verbs, "TRY_AGAIN_AFTER_S", 0.0)
    monkeypatch.setattr(ingest_verbs.asyncio, "sleep", rest)
    monkeypatch.setattr(ingest_verbs, "_settings", lambda *_: Settings(data_dir=tmp_path))
    client = SimpleNamespace(stream=lambda _: {"document": {"stream": "s", "schema": SCHEMA}})
    monkeypatch.setattr(ingest_verbs, "connect", lambda *_: contextlib.nullcontext(client))
    with pytest.raises(StackError) as ended:
        ingest_verbs.ingest("s", None, folder, 0.0, False, None, None, None, False)
    assert double.tries == ["broken.ndjson.gz", "stale.ndjson", "stale.ndjson", "stale.ndjson"]
    broken = f"{folder / 'broken.ndjson.gz'} is truncated: its .gz data don't end"
    assert [told.splitlines() for told in double.told] == [
        [],
        [broken],
        [f"can't read {folder / 'stale.ndjson'}: Stale file handle"],
        [],
    ], "each failure is reported before the next try, and a second time only when it is another"
    assert str(ended.value) == broken, "what was taken in the end has not failed"
    assert capsys.readouterr().out == f"{folder / 'stale.ndjson'}: 1 records\n"


class AwayIngest:
    """Double of FileIngest.

    Kafka is unavailable at the first file, and when the second writer is opened; a topic accepts no row of `large`.
    After either error the writer accepts nothing more.
    """

    def __init__(self) -> None:
        self.tries: list[tuple[str, str | None]] = []
        self.epochs: list[int] = []
        self._is_broken = False

    def __call__(self, _: object, spec: object, identity: WriterIdentity, *__: object, **___: object) -> AwayIngest:
        self.epochs.append(identity.epoch)
        self._is_broken = False
        return self

    async def __aenter__(self) -> AwayIngest:
        if len(self.epochs) == 2:
            raise LogUnavailable("Kafka accepts no transactions")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""

    async def take(self, path: Path, on_progress: object, *, again: str | None) -> Taken:
        assert not self._is_broken
        self.tries.append((path.name, again))
        self._is_broken = True
        if path.name == "large.ndjson":
            raise RecordTooLarge("topic s accepts smaller records")
        if len(self.epochs) == 1:
            raise LogUnavailable("Kafka did not commit")
        self._is_broken = False
        return Taken(1, 0, 0)


def run_of(
    tmp_path: Path, paths: list[Path | None], monkeypatch: pytest.MonkeyPatch, *, is_watching: bool
) -> tuple[AwayIngest, list[str], dict[Path, Failure], list[float]]:
    """The ingest, the files that were taken, the failures, and how long it rested in between."""
    double, taken, failures, rests = AwayIngest(), list[dict[str, object]](), dict[Path, Failure](), list[float]()

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    for path in paths:
        if path is not None:
            path.write_bytes(b"1")
    monkeypatch.setattr(file_ingest, "FileIngest", double)
    monkeypatch.setattr(ingest_verbs.asyncio, "sleep", rest)
    asyncio.run(
        ingest_verbs._run(
            Settings(data_dir=tmp_path / "data"), spec(), paths, True, lambda *_: None, taken, failures,
            is_watching=is_watching,
        )
    )  # fmt: skip
    return double, [Path(str(one["file"])).name for one in taken], failures, rests


def test_a_watch_waits_for_kafka_and_goes_on_behind_a_file_that_its_topic_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a new writer each time, which fences the one before and looks for what that left in doubt."""
    names = "away.ndjson", "large.ndjson", "other.ndjson"
    paths = [tmp_path / name for name in names]
    double, taken, failures, rests = run_of(tmp_path, [*paths, None], monkeypatch, is_watching=True)
    assert taken == ["away.ndjson", "other.ndjson"]
    assert [*failures] == [paths[1]] and failures[paths[1]].may_pass
    assert [name for name, _ in double.tries] == ["away.ndjson", "away.ndjson", "large.ndjson", "other.ndjson"]
    assert len(double.epochs) == 4 and sorted({*double.epochs}) == double.epochs
    assert {again for _, again in double.tries} == {str(double.epochs[0])}, (
        "a file is taken again once, not at each try"
    )
    assert rests == [ingest_verbs.TRY_AGAIN_AFTER_S] * 2 + [ingest_verbs.LOOK_EVERY_S]
    assert capsys.readouterr().err.splitlines() == [
        f"{paths[0]}: Kafka did not commit",
        f"{paths[1]}: topic s accepts smaller records",
    ]


def test_without_a_watch_an_outage_ends_it_and_a_file_that_the_topic_does_not_take_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, large, other = (tmp_path / name for name in ("away.ndjson", "large.ndjson", "other.ndjson"))
    double, taken, failures, _ = run_of(tmp_path, [away, other], monkeypatch, is_watching=False)
    assert (taken, [*failures]) == ([], [away]) and len(double.epochs) == 1
    monkeypatch.setattr(AwayIngest, "__aenter__", _itself)
    _, taken, failures, rests = run_of(tmp_path, [large, other], monkeypatch, is_watching=False)
    assert (taken, [*failures], rests) == (["other.ndjson"], [large], [])


async def _itself(self: AwayIngest) -> AwayIngest:
    return self


def test_a_watched_file_that_gives_no_status_is_left_to_the_one_who_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader of the file reports that it can't be read. A file that has disappeared is omitted."""
    for name in ("gone.ndjson", "stale.ndjson", "there.ndjson"):
        (tmp_path / name).write_bytes(b"1")
    real = Path.stat

    def stat(path: Path, **more: Any) -> os.stat_result:
        if path.name == "stale.ndjson":
            raise OSError(errno.ESTALE, "Stale file handle")
        if path.name == "gone.ndjson":
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return real(path, **more)

    monkeypatch.setattr(Path, "stat", stat)
    paths = _paths([], tmp_path, 0, {})
    assert [next(paths) for _ in range(3)] == [tmp_path / "stale.ndjson", tmp_path / "there.ndjson", None]


class ToldLog:
    """Double of writer and finder: it commits until the second transaction.

    That one ends before or after it is in the log.
    """

    def __init__(self, log: list[Any], step: str) -> None:
        self.log = log
        self._step = step
        self._calls = 0

    async def open(self) -> None:
        """Nothing is in the way."""

    def drop(self) -> None:
        """Nothing is open."""

    async def commit(self, records: list[Any]) -> None:
        self._calls += 1
        if self._calls == 2 and self._step == "before":
            raise LogUnavailable("ended before")
        self.log.extend(records)
        if self._calls == 2 and self._step == "after":
            raise LogUnavailable("ended after")

    async def ends_of(self, topic: str) -> dict[int, int]:
        return {0: len(self.log)}

    async def outcome_of(self, attempt: Any, records: list[Any]) -> Outcome:
        found = {(one.epoch, one.sequence) for one in self.log[attempt.scan_from[0] :]}
        if not {(one.epoch, one.sequence) for one in records} <= found:
            return Outcome.ABSENT
        return Outcome.ARRIVED


@pytest.mark.guarantee("G305")
@pytest.mark.parametrize("step", ["before", "after"])
def test_a_transaction_in_doubt_is_resolved_from_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(file_ingest, "TRANSACTION_RECORDS_MAX", 10)
    path, log = tmp_path / "f.ndjson", list[Any]()
    path.write_bytes(b"".join(b"%d\n" % n for n in range(25)) + b"x" * 100 + b"\n")

    async def run(at: str) -> Taken:
        with contextlib.closing(WriterIdentity.take(tmp_path, "files-host-s")) as identity:
            with contextlib.closing(Journal(identity.directory / "files.sqlite")) as journal:
                one = FileIngest("127.0.0.1:1", spec(), identity, journal, record_bytes_max=50, confirm_timeout_s=1)
                one._writer = one._finder = ToldLog(log, at)  # type: ignore[assignment]
                async with one:
                    return await one.take(path, lambda *_: None)

    with pytest.raises(LogUnavailable, match=step):
        asyncio.run(run(step))
    before = 10 if step == "before" else 20
    assert asyncio.run(run("")) == Taken(25 - before, before, 1)
    assert asyncio.run(run("")) == Taken(0, 26, 0)
    assert [record.value for record in log] == [b"%d" % n for n in range(25)]
    assert len({dict(record.headers)["message-id"] for record in log}) == 25


@pytest.mark.guarantee("G770")
@pytest.mark.parametrize(("decision", "taken"), [(Decision.RESEND, Taken(15, 10, 1)), (Decision.DROP, Taken(5, 20, 1))])
def test_a_transaction_that_the_log_no_longer_shows_is_the_operators_to_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decision: Decision, taken: Taken
) -> None:
    monkeypatch.setattr(file_ingest, "TRANSACTION_RECORDS_MAX", 10)
    path, log = tmp_path / "f.ndjson", list[Any]()
    path.write_bytes(b"".join(b"%d\n" % n for n in range(25)) + b"x" * 100 + b"\n")

    class ShortenedLog(ToldLog):
        async def outcome_of(self, attempt: Any, records: list[Any]) -> Outcome:
            return Outcome.UNKNOWN

    async def run(at: str, in_doubt: Decision | None = None) -> Taken:
        with contextlib.closing(WriterIdentity.take(tmp_path, "files-host-s")) as identity:
            with contextlib.closing(Journal(identity.directory / "files.sqlite")) as journal:
                one = FileIngest(
                    "127.0.0.1:1",
                    spec(),
                    identity,
                    journal,
                    record_bytes_max=50,
                    confirm_timeout_s=1,
                    in_doubt=in_doubt,
                )
                one._writer = one._finder = ShortenedLog(log, at)  # type: ignore[assignment]
                async with one:
                    return await one.take(path, lambda *_: None)

    with pytest.raises(LogUnavailable):
        asyncio.run(run("after"))
    for _ in range(2):
        with pytest.raises(
            Conflict, match=r"the last 10 records of an earlier strandline ingest s .* --in-doubt resend"
        ):
            asyncio.run(run(""))
    assert len(log) == 20
    assert asyncio.run(run("", decision)) == taken
    assert asyncio.run(run("")) == Taken(0, 26, 0)


def test_what_came_before_a_break_in_a_file_is_in_the_log(tmp_path: Path) -> None:
    """And it is known the next time, when the file is whole."""
    path, log = tmp_path / "f.ndjson.gz", list[Any]()
    packed = gzip.compress(b"1\n2\n", mtime=0), gzip.compress(b"3\n4\n", mtime=0)
    path.write_bytes(packed[0] + packed[1][:12])

    async def run() -> Taken:
        with contextlib.closing(WriterIdentity.take(tmp_path, "files-host-s")) as identity:
            with contextlib.closing(Journal(identity.directory / "files.sqlite")) as journal:
                one = FileIngest("127.0.0.1:1", spec(), identity, journal, record_bytes_max=50, confirm_timeout_s=1)
                one._writer = one._finder = ToldLog(log, "")  # type: ignore[assignment]
                async with one:
                    return await one.take(path, lambda *_: None)

    with pytest.raises(UnreadableFile, match="truncated"):
        asyncio.run(run())
    assert [record.value for record in log] == [b"1", b"2"]
    path.write_bytes(b"".join(packed))
    assert asyncio.run(run()) == Taken(2, 2, 0)
    assert [record.value for record in log] == [b"1", b"2", b"3", b"4"]


def take(folder: Path, path: Path, log: list[Any], stream: StreamSpec, record_bytes_max: int) -> Taken:
    """Take the file as a process does that ends after it."""

    async def run() -> Taken:
        with contextlib.closing(WriterIdentity.take(folder, "files-host-s")) as identity:
            with contextlib.closing(Journal(identity.directory / "files.sqlite")) as journal:
                one = FileIngest(
                    "127.0.0.1:1", stream, identity, journal, record_bytes_max=record_bytes_max, confirm_timeout_s=1
                )
                one._writer = one._finder = ToldLog(log, "")  # type: ignore[assignment]
                async with one:
                    return await one.take(path, lambda *_: None)

    return asyncio.run(run())


QUOTED = b'b;a\n0;p\n\n1;"open\n2;x\n3;yyyyyyyyyy\n4"\n'
AS_ONE = [b"0;p", b'1;"open\n2;x\n3;yyyyyyyyyy\n4"']
AS_LINES = [b"0;p", b'1;"open', b"2;x", b"3;yyyyyyyyyy", b'4"']
OPEN = b'0;p\n1;"open\n2;x\n'


@pytest.mark.guarantee(
    "G624",
    "Ingest of a grown file continues after its last stored line, also if another `STRANDLINE_RECORD_BYTES_MAX` or "
    "release divides the lines differently. No row is lost or repeated.",
    promise="records-are-stored-once-and-unchanged",
)
@pytest.mark.parametrize(
    ("text", "limit", "later", "found"),
    [
        (QUOTED, 20, 100, AS_LINES),
        (QUOTED, 100, 20, AS_ONE),
        (OPEN, 100, 100, [b"0;p", b'1;"open\n2;x']),
        (OPEN, 100, 20, [b"0;p", b'1;"open\n2;x']),
    ],
)
def test_a_file_that_grows_goes_on_behind_what_was_taken_whatever_rows_are_cut_by(
    tmp_path: Path, text: bytes, limit: int, later: int, found: list[bytes]
) -> None:
    """Another limit cuts what was taken into more rows or fewer. So would other rules for rows; so do more lines behind a quote
    that is not closed."""
    path, log, stream = tmp_path / "f.csv", list[Any](), spec(**CSV)
    path.write_bytes(text)
    assert take(tmp_path, path, log, stream, limit) == Taken(len(found), 0, 0)
    path.write_bytes(text + b"5;p\n6;q\n")
    assert take(tmp_path, path, log, stream, later) == Taken(2, len(found), 0)
    assert take(tmp_path, path, log, stream, limit) == Taken(0, len(found) + 2, 0)
    assert [record.value for record in log] == [*found, b"5;p", b"6;q"]
    assert len({dict(record.headers)["message-id"] for record in log}) == len(log)


def test_a_file_that_grows_has_the_columns_that_the_stream_expects_now(tmp_path: Path) -> None:
    path, log = tmp_path / "f.csv", list[Any]()
    path.write_bytes(b"b;a\n0;p\n")
    take(tmp_path, path, log, spec(**CSV), 50)
    path.write_bytes(b"b;a\n0;p\n1;q\n")
    other = spec(format="csv", csv={"delimiter": ";", "columns": ["a", "b"]})
    with pytest.raises(UnreadableFile, match="expects a, b"):
        take(tmp_path, path, log, other, 50)
    assert [record.value for record in log] == [b"0;p"]


@pytest.mark.parametrize("suffix", PACK)
def test_lines_go_on_behind_those_that_were_taken(tmp_path: Path, suffix: str) -> None:
    """A line of only blanks that is longer than a record counts for a row or for none, depending on the limit."""
    path, log = tmp_path / f"f.ndjson{suffix}", list[Any]()
    pack = PACK[suffix]
    path.write_bytes(pack(b"1\n" + b" " * 60 + b"\n2\n"))
    assert take(tmp_path, path, log, spec(), 50) == Taken(2, 0, 1)
    path.write_bytes(path.read_bytes() + pack(b"3\n4\n"))
    assert take(tmp_path, path, log, spec(), 100) == Taken(2, 3, 0)
    assert [record.value for record in log] == [b"1", b"2", b"3", b"4"]


def test_rows_of_parquet_go_on_behind_those_that_were_taken(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a": list("xyz")}), tmp_path / "f.parquet")
    size = (tmp_path / "f.parquet").stat().st_size
    assert list(rows_of(tmp_path / "f.parquet", spec(), size, 50, lambda _: None, 1)) == [
        (b'{"a":"y"}', 2),
        (b'{"a":"z"}', 3),
    ]
