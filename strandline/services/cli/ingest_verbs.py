"""`strandline ingest`: files into a stream."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.core.errors import LogUnavailable, NotFound, RecordTooLarge, StackError, StrandlineError
from strandline.services.cli import display
from strandline.services.cli.options import AsJson, DataDir, IgnoredUrl, TokenFile, Url, connect
from strandline.services.cli.output import ReportProgress, print_json, printable, show, waiting

if TYPE_CHECKING:  # their pydantic takes a fifth of a second to import, and every command imports this module
    from strandline.core.settings import Settings
    from strandline.core.streams.stream import StreamSpec
    from strandline.ingest.files.file_ingest import FileIngest

ingest_app = typer.Typer()
spool_app = typer.Typer(help="Spooled records whose arrival is unknown.", no_args_is_help=True)
SUFFIXES = (".ndjson", ".jsonl", ".json", ".csv", ".txt", ".lp", ".log", ".parquet", ".pq")
"""Suffixes of the files that are ingested from a watched folder, also compressed as .gz, .zst, or .zstd."""
CONFIRM_TIMEOUT_S = 30.0
LOOK_EVERY_S = 0.5
"""Interval in seconds at which a watched folder is listed."""
TRY_AGAIN_AFTER_S = 5.0
"""Delay in seconds before a failed file of a watched folder is tried again, and before a watch continues while Kafka is
unavailable. Each try reads the file from its beginning."""
_JOURNAL_FILE = "files.sqlite"


class Choice(StrEnum):
    """Action for records whose arrival is unknown."""

    RESEND = "resend"
    DROP = "drop"


@dataclass(frozen=True)
class Failure:
    """Reason why a file was not ingested."""

    message: str
    may_pass: bool
    """True if another try can succeed with the same file: the cause was its disk, a permission, Kafka, or the limit of its
    topic."""


@ingest_app.command("ingest", epilog="Example: strandline ingest readings yesterday.ndjson.gz")
def ingest(
    stream: Annotated[str, typer.Argument(help="Name of the stream.")],
    files: Annotated[
        list[Path] | None, typer.Argument(help="Files of NDJSON, lines, CSV, or Parquet, also compressed (.gz, .zst).")
    ] = None,
    watch: Annotated[
        Path | None,
        typer.Option(help="Watch this folder, and ingest each new file until Ctrl-C.", exists=True, file_okay=False),
    ] = None,
    settle_s: Annotated[
        float,
        typer.Option(
            "--settle-time", min=0, help="With --watch: seconds without a change after which a file is ingested."
        ),
    ] = 2.0,
    reingest: Annotated[bool, typer.Option("--reingest", help="Also ingest files that were ingested before.")] = False,
    in_doubt: Annotated[
        Choice | None,
        typer.Option(
            help="Resend or drop the last records of an earlier run, if the log no longer shows their arrival."
        ),
    ] = None,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Write files to a stream, each record exactly once, also after a kill and a second start of this command."""
    if not files and watch is None:
        raise typer.BadParameter("pass files, or a folder with --watch", param_hint="FILES")
    from strandline.core.streams.stream import StreamSpec

    with connect(data_dir, url, token_file) as client:
        spec = StreamSpec.from_document(client.stream(stream)["document"])
    taken: list[dict[str, object]] = []
    failures: dict[Path, Failure] = {}
    paths = _paths(files or [], watch, settle_s, failures)
    with contextlib.suppress(KeyboardInterrupt) if watch is not None else contextlib.nullcontext():
        put_files(
            spec,
            paths,
            (data_dir, url),
            taken,
            failures,
            reingest=reingest,
            is_watching=watch is not None,
            in_doubt=in_doubt,
        )
    if as_json:
        print_json({"files": taken})
    else:
        for one in taken:
            print(printable(_summary(one)))
    if failures:
        raise StackError("; ".join(one.message for one in failures.values()))


@spool_app.command("list", epilog="Example: strandline spool list --data-dir /var/lib/strandline")
def list_spools(data_dir: DataDir = None, ignored_url: IgnoredUrl = None, as_json: AsJson = False) -> None:
    """List spooled records whose arrival the log can no longer show."""
    from rich.text import Text

    from strandline.ingest.append.attempts import open_questions
    from strandline.ingest.append.writer_identity import writer_directories

    found = [
        {"name": f"{writer_id}/{one.number}", "stream": one.topic, **asdict(one)}
        for writer_id, one in open_questions(writer_directories(_own_directory(data_dir)))
    ]
    for one in found:
        del one["topic"], one["number"]
    show({"in_doubt": found}, as_json, lambda: map(Text, map(_in_doubt_summary, found)) if found else [Text("none")])


@spool_app.command("resolve", epilog="Example: strandline spool resolve udp-host-8082/3 resend")
def resolve_spooled(
    name: Annotated[str, typer.Argument(help="Name of the spool, as strandline spool list prints it.")],
    choice: Annotated[
        Choice,
        typer.Argument(
            help="resend: the records are sent, and can repeat. drop: the records are deleted, and can be lost."
        ),
    ],
    data_dir: DataDir = None,
    ignored_url: IgnoredUrl = None,
    as_json: AsJson = False,
) -> None:
    """Resend or drop spooled records whose arrival the log can no longer show."""
    from strandline.ingest.append.attempts import Decision, Questions
    from strandline.ingest.append.writer_identity import writer_directories

    writer_id, _, number = name.rpartition("/")
    directory = writer_directories(_own_directory(data_dir)).get(writer_id)
    questions = Questions(directory) if directory is not None else None
    if questions is None or all(str(one.number) != number for one in questions.all()):
        raise NotFound(f"{name}: no such records; to list the names, run strandline spool list")
    try:
        questions.answer(int(number), Decision(choice.value))
    except OSError as error:
        raise StackError(
            f"{name}: can't write to {directory}: {error}; run the command as the gateway's user"
        ) from error
    answer = {"name": name, "decision": choice.value}
    show(answer, as_json, lambda: [f"{name}: {choice.value}; the gateway does it within seconds, or at its next start"])


def _own_directory(data_dir: Path | None) -> Path:
    from strandline.core.settings import Settings

    return data_dir or Settings.read().data_dir


def _in_doubt_summary(one: dict[str, object]) -> str:
    first, last = (display.show_time(int(str(one[name]))) for name in ("received_first_ms", "received_last_ms"))
    return f"{one['name']}: {one['records']} records of stream {one['stream']}, received from {first} to {last}"


def put_files(
    spec: StreamSpec,
    paths: Iterable[Path | None],
    stack: tuple[Path | None, str | None],
    taken: list[dict[str, object]],
    failures: dict[Path, Failure],
    *,
    reingest: bool = False,
    is_watching: bool = False,
    in_doubt: Choice | None = None,
) -> None:
    """Write files to a stream, each record once. The outcome of each file is added to `taken` or to `failures`.

    Args: paths: None means a short pause. stack: The options `--data-dir` and `--url`.
        is_watching: True if the command watches a folder. Then each failure is reported immediately.
    """
    with waiting(f"files go into stream {spec.stream}") as report:
        running = _run(
            _settings(*stack),
            spec,
            paths,
            reingest,
            report,
            taken,
            failures,
            is_watching=is_watching,
            in_doubt=in_doubt,
        )
        asyncio.run(running)


def _settings(data_dir: Path | None, url: str | None) -> Settings:
    """Return the settings of the stack in the data directory. With `--url`, return those of the environment."""
    from strandline.core.settings import Settings

    settings = Settings.read()
    if url and data_dir is None:
        return settings
    from strandline.services.embedded.addresses import read_stack, stack_settings
    from strandline.services.embedded.passwords import use_logins

    addresses = read_stack(data_dir or settings.data_dir)
    use_logins(addresses)
    return stack_settings(settings, addresses)


async def _run(
    settings: Settings,
    spec: StreamSpec,
    paths: Iterable[Path | None],
    reingest: bool,
    report: ReportProgress,
    taken: list[dict[str, object]],
    failures: dict[Path, Failure],
    *,
    is_watching: bool = False,
    in_doubt: Choice | None = None,
) -> None:
    """Ingest each file, and add its outcome to `taken` or `failures`. A file that succeeds later is removed from `failures`.

    After an error of Kafka, a writer accepts nothing more, and only the log shows which records have arrived. A new writer
    fences the old one and reads the log. Then it continues with the next file, or after an outage with the same file.
    Without a watch, an outage ends the run. A None in the paths means a short pause.
    """
    from strandline.ingest.append.attempts import Decision
    from strandline.ingest.append.writer_identity import WriterIdentity
    from strandline.ingest.files.file_ingest import FileIngest
    from strandline.ingest.files.journal import Journal

    writer_id = f"files-{socket.gethostname()}-{spec.stream}"
    left: Iterator[Path | None] | None = iter(paths)
    mark: str | None = None
    has_begun = False
    while left is not None:
        with contextlib.closing(WriterIdentity.take(settings.data_dir, writer_id)) as identity:
            with contextlib.closing(Journal(identity.directory / _JOURNAL_FILE)) as journal:
                ingesting = FileIngest(
                    settings.kafka_bootstrap,
                    spec,
                    identity,
                    journal,
                    record_bytes_max=settings.record_bytes_max,
                    confirm_timeout_s=max(CONFIRM_TIMEOUT_S, settings.confirm_timeout_s),
                    in_doubt=None if in_doubt is None else Decision(in_doubt.value),
                )
                if reingest and mark is None:
                    mark = str(identity.epoch)
                try:
                    async with ingesting:
                        has_begun = True
                        left = await _take_each(ingesting, left, mark, report, taken, failures, is_watching=is_watching)
                except LogUnavailable:
                    if not (has_begun and is_watching):
                        raise
                    await asyncio.sleep(TRY_AGAIN_AFTER_S)


async def _take_each(
    ingesting: FileIngest,
    left: Iterator[Path | None],
    mark: str | None,
    report: ReportProgress,
    taken: list[dict[str, object]],
    failures: dict[Path, Failure],
    *,
    is_watching: bool,
) -> Iterator[Path | None] | None:
    """Ingest the files as described in `_run`. Return the remaining files if another writer must continue.

    Args: mark: Suffix of the identities under which files are ingested again.
    """
    for path in left:
        if path is None:
            await asyncio.sleep(LOOK_EVERY_S)
            continue
        broken: StrandlineError | None = None
        try:
            size = path.stat().st_size

            def show_progress(read_bytes: int, records: int, path: Path = path, size: int = size) -> None:
                report(f"{path.name}: ", f"{records:,} records", read_bytes, size)

            found = await ingesting.take(path, show_progress, again=mark)
        except OSError as error:
            failure = Failure(f"can't read {path}: {error.strerror or error}", may_pass=True)
        except (LogUnavailable, RecordTooLarge) as error:
            failure, broken = Failure(f"{path}: {error}", may_pass=True), error
        except StrandlineError as error:
            failure = Failure(str(error), may_pass=False)
        else:
            failures.pop(path, None)
            one = {"file": str(path), **vars(found)}
            taken.append(one)
            report(_summary(one))
            continue
        if is_watching and failures.get(path) != failure:
            print(printable(failure.message), file=sys.stderr)
        failures[path] = failure
        if isinstance(broken, RecordTooLarge):
            return left
        if broken is not None:
            if not is_watching:
                return None
            await asyncio.sleep(TRY_AGAIN_AFTER_S)
            return chain([path], left)
    return None


def _paths(
    files: list[Path], watch: Path | None, settle_s: float, failures: Mapping[Path, Failure]
) -> Iterator[Path | None]:
    """Yield the files, then the unchanging files of the folder, until Ctrl-C. None if there is no file at present. A file of
    the folder is yielded once, and again after a change or a temporary failure. The caller adds failed files to `failures`
    before it requests the next path."""
    yield from files
    seen: dict[Path, tuple[int, int] | None] = {}
    """File -> size and time of its last change at the last listing. None if they could not be read."""
    due_s: dict[Path, float] = {}
    """Failed file -> time of the next try."""
    while watch is not None:
        found = False
        for path in sorted(watch.iterdir()):
            suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in (".gz", ".zst", ".zstd")]
            if not suffixes or suffixes[-1] not in SUFFIXES or path.name.startswith("."):
                continue
            try:
                state = path.stat()
            except FileNotFoundError:
                continue  # deleted again, or a broken link
            except OSError:
                mark = None  # the caller gets the same error from the file, and reports it
            else:
                if not stat.S_ISREG(state.st_mode) or time.time_ns() - state.st_mtime_ns < settle_s * 1e9:
                    continue
                mark = (state.st_size, state.st_mtime_ns)
            if path in seen and seen[path] == mark and time.monotonic() < due_s.get(path, math.inf):
                continue
            seen[path] = mark
            found = True
            yield path
            failure = failures.get(path)
            if failure is not None and failure.may_pass:
                due_s[path] = time.monotonic() + TRY_AGAIN_AFTER_S
            else:
                due_s.pop(path, None)
        if not found:
            yield None


def _summary(one: dict[str, object]) -> str:
    before = f", {one['before']:,} rows were already in the log" if one["before"] else ""
    refused = f", {one['refused']:,} rows are too large and were skipped" if one["refused"] else ""
    return f"{one['file']}: {one['records']:,} records{before}{refused}"
