"""`strandline ingest`: files into a stream."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.core.errors import StackError, StrandlineError
from strandline.services.cli.options import AsJson, DataDir, TokenFile, Url, connect
from strandline.services.cli.output import Tell, print_json, waiting

if TYPE_CHECKING:  # their pydantic takes a fifth of a second to import, and every verb comes by here
    from strandline.core.settings import Settings
    from strandline.core.stream import StreamSpec

ingest_app = typer.Typer()
SUFFIXES = (".ndjson", ".jsonl", ".json", ".csv", ".txt", ".lp", ".log", ".parquet", ".pq")
"""What is taken of a watched folder, also packed as .gz, .zst or .zstd."""
CONFIRM_TIMEOUT_S = 30.0
LOOK_EVERY_S = 0.5
"""How often a watched folder is looked at."""
_JOURNAL_FILE = "files.sqlite"


@ingest_app.command("ingest", epilog="Example: strandline ingest readings yesterday.ndjson.gz")
def ingest(
    stream: Annotated[str, typer.Argument(help="The stream's name.")],
    files: Annotated[
        list[Path] | None, typer.Argument(help="NDJSON, lines, CSV or Parquet, also packed as .gz or .zst.")
    ] = None,
    watch: Annotated[
        Path | None,
        typer.Option(help="Take each file that appears in this folder, until Ctrl-C.", exists=True, file_okay=False),
    ] = None,
    rest_s: Annotated[
        float, typer.Option("--rest", min=0, help="In a watched folder: take a file that hasn't changed for so long.")
    ] = 2.0,
    again: Annotated[bool, typer.Option("--again", help="Also what was taken before.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Put files into a stream: each record once, also when this is killed and started again."""
    if not files and watch is None:
        raise typer.BadParameter("name files, or a folder with --watch", param_hint="FILES")
    from strandline.core.stream import StreamSpec

    with connect(data_dir, url, token_file) as client:
        spec = StreamSpec.from_document(client.stream(stream)["document"])
    taken: list[dict[str, object]] = []
    failures: list[str] = []
    paths = _paths(files or [], watch, rest_s)
    with contextlib.suppress(KeyboardInterrupt) if watch is not None else contextlib.nullcontext():
        put_files(spec, paths, (data_dir, url), taken, failures, again=again)
    if as_json:
        print_json({"files": taken})
    else:
        for one in taken:
            print(_sentence(one))
    if failures:
        raise StackError("; ".join(failures))


def put_files(
    spec: StreamSpec,
    paths: Iterable[Path | None],
    stack: tuple[Path | None, str | None],
    taken: list[dict[str, object]],
    failures: list[str],
    *,
    again: bool = False,
) -> None:
    """Put files into a stream, each of their records once: add what became of each to `taken`, or a sentence to `failures`. None
    among the paths stands for a moment's rest. `stack`: the options `--data-dir` and `--url`."""
    with waiting(f"files go into stream {spec.stream}") as tell:
        asyncio.run(_run(_settings(*stack), spec, paths, again, tell, taken, failures))


def _settings(data_dir: Path | None, url: str | None) -> Settings:
    """Those of the stack in the data directory; with `--url` those of the environment, which say where Kafka is."""
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
    again: bool,
    tell: Tell,
    taken: list[dict[str, object]],
    failures: list[str],
) -> None:
    """Take each file: add what became of it to `taken`, or a sentence to `failures`; the others are taken. None among the paths
    stands for a moment's rest."""
    from strandline.ingest.append.writer_identity import WriterIdentity
    from strandline.ingest.files.file_ingest import FileIngest
    from strandline.ingest.files.journal import Journal

    writer_id = f"files-{socket.gethostname()}-{spec.stream}"
    with contextlib.closing(WriterIdentity.take(settings.data_dir, writer_id)) as identity:
        with contextlib.closing(Journal(identity.directory / _JOURNAL_FILE)) as journal:
            ingesting = FileIngest(
                settings.kafka_bootstrap,
                spec,
                identity,
                journal,
                record_bytes_max=settings.record_bytes_max,
                confirm_timeout_s=max(CONFIRM_TIMEOUT_S, settings.confirm_timeout_s),
            )
            async with ingesting:
                for path in paths:
                    if path is None:
                        await asyncio.sleep(LOOK_EVERY_S)
                        continue
                    try:
                        size = path.stat().st_size

                        def show(read_bytes: int, records: int, path: Path = path, size: int = size) -> None:
                            tell(f"{path.name}: ", f"{records:,} records", read_bytes, size)

                        found = await ingesting.take(path, show, again=again)
                    except OSError as error:
                        failures.append(f"{path} can't be read: {error.strerror or error}")
                    except StrandlineError as error:
                        failures.append(str(error))
                        if error.code in ("log_unavailable", "record_too_large"):
                            break  # what it left in doubt is resolved at the next start
                    else:
                        one = {"file": str(path), **vars(found)}
                        taken.append(one)
                        tell(_sentence(one))


def _paths(files: list[Path], watch: Path | None, rest_s: float) -> Iterator[Path | None]:
    """The files, then those of the folder that rest, again and again; None: nothing is there at present. Ctrl-C ends it."""
    yield from files
    seen: dict[Path, tuple[int, int]] = {}
    """File -> size and time of change when it was last taken."""
    while watch is not None:
        found = False
        for path in sorted(watch.iterdir()):
            suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in (".gz", ".zst", ".zstd")]
            if not suffixes or suffixes[-1] not in SUFFIXES or path.name.startswith(".") or not path.is_file():
                continue
            state = path.stat()
            mark = (state.st_size, state.st_mtime_ns)
            if seen.get(path) == mark or time.time_ns() - state.st_mtime_ns < rest_s * 1e9:
                continue
            seen[path] = mark
            found = True
            yield path
        if not found:
            yield None


def _sentence(one: dict[str, object]) -> str:
    before = f", {one['before']:,} rows were in the log already" if one["before"] else ""
    refused = f", {one['refused']:,} rows are too large and were left out" if one["refused"] else ""
    return f"{one['file']}: {one['records']:,} records{before}{refused}"
