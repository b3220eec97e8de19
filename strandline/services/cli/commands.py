"""The command line: `strandline`. Everything but `up` and `down` goes through the REST API.

Exit codes: 0 done; 1 failed, with a sentence on stderr that says what, why and what to do; 2 wrong use.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from strandline.core.errors import InvalidDocument, InvalidSettings, NotFound, Problem, StrandlineError
from strandline.services.cli import display
from strandline.services.client import Answer, ControlClient

# Heavy parts (the servers, the pipeline model) are imported by the verbs that need them: `job status` should be quick.

app = typer.Typer(
    help="Streaming ETL for sensor feeds that can't be asked to send again.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
job_app = typer.Typer(help="Jobs: running pipelines.", no_args_is_help=True)
stream_app = typer.Typer(help="Streams: what is registered, and what the log holds.", no_args_is_help=True)
dead_letters_app = typer.Typer(help="Records that could not be used, with the reason.", no_args_is_help=True)
pipeline_app = typer.Typer(help="Pipelines before they run.", no_args_is_help=True)
app.add_typer(job_app, name="job")
app.add_typer(stream_app, name="stream")
app.add_typer(dead_letters_app, name="dead-letters")
app.add_typer(pipeline_app, name="pipeline")

DataDir = Annotated[
    Path | None, typer.Option(help="The directory of the stack; default: STRANDLINE_DATA_DIR, or the usual place.")
]
Url = Annotated[
    str | None,
    typer.Option(envvar="STRANDLINE_URL", help="The control service's address, instead of a data directory."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Name = Annotated[str, typer.Argument(help="The job's name.")]
Timeout = Annotated[float, typer.Option(min=0, help="Give up waiting after so many seconds.")]
File = Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True)]


@app.command()
def up(
    data_dir: DataDir = None,
    port_offset: Annotated[int, typer.Option(help="Added to every port.")] = 0,
    detach: Annotated[bool, typer.Option("--detach", help="Return when all is ready, and leave it running.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start the embedded stack: Kafka, Elasticsearch, MQTT broker, control service, HTTP gateway; stop it at Ctrl-C."""
    from strandline.services.embedded import stack

    settings = _settings()
    console = _console(as_json)
    started = stack.up(settings, data_dir or settings.data_dir, port_offset, detach, console)
    if as_json:
        _print_json(asdict(started.addresses))
    if detach:
        return
    console.print("Ctrl-C stops it.")
    try:
        started.wait()
    finally:
        started.stop()


@app.command()
def example(
    data_dir: DataDir = None,
    port_offset: Annotated[int, typer.Option(help="Added to every port.")] = 0,
    speed: Annotated[
        float, typer.Option(min=1, help="How much faster than the clock the turbines' time runs.")
    ] = 120.0,
    seconds: Annotated[float | None, typer.Option(min=1, help="End after so long; default: at Ctrl-C.")] = None,
) -> None:
    """Start the embedded stack with a simulated fleet of wind turbines and its job, and show what happens; stop it at Ctrl-C."""
    from strandline.example.run import run_example

    settings = _settings()
    code = run_example(settings, data_dir or settings.data_dir, port_offset, speed, _console(False), seconds)
    raise typer.Exit(code)


@app.command()
def down(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Stop everything that `up` started, runners included. What is desired of the jobs stays."""
    from strandline.services.embedded import stack

    directory = data_dir or _settings().data_dir
    stack.down(directory, _console(as_json))
    if as_json:
        _print_json({"data_dir": str(directory), "stopped": True})


@app.command()
def apply(
    files: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, readable=True, help="YAML documents.")],
    plan: Annotated[bool, typer.Option("--plan", help="Say what would change and cost, and change nothing.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Register streams and submit pipelines, all or none. A new job starts; a changed one takes its new version."""
    text, name_source = _join(files)
    with _client(data_dir, url) as client:
        try:
            if plan:
                jobs = client.plan(text, str(files[0]))
                _show({"jobs": jobs}, as_json, lambda: display.plan_tables(jobs))
                return
            applied = client.apply(text, str(files[0]))
        except InvalidDocument as error:
            raise InvalidDocument([name_source(problem) for problem in error.problems]) from error
    if as_json:
        _print_json({"applied": applied})
    for one in applied if not as_json else ():
        print(f"{one['kind']} {one['name']}: {one['outcome']} (version {one['version']})")


@job_app.command("list")
def list_jobs(data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """All jobs, one a line."""
    with _client(data_dir, url) as client:
        answer = client.get("/v1/jobs")
    _show(answer, as_json, lambda: display.jobs_tables(answer["jobs"]))


@job_app.command("status")
def show_job(name: Name, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """One job: state, watermark, lag, counts."""
    with _client(data_dir, url) as client:
        _show_job(client.job(name), as_json)


@job_app.command("start")
def start_job(
    name: Name, timeout: Timeout = 120, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Start the job and wait until it runs."""
    with _client(data_dir, url) as client:
        client.order(name, "start")
        _show_job(client.wait_for_job(name, _is_in("running"), "running", timeout), as_json)


@job_app.command("stop")
def stop_job(
    name: Name,
    drain: Annotated[bool, typer.Option("--drain", help="Close every open window first.")] = False,
    timeout: Timeout = 300,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """End the job after its current slice, and wait until it has."""
    with _client(data_dir, url) as client:
        if drain:
            client.order(name, "drain")
            job = client.wait_for_job(name, _is_in("drained"), "drained", timeout)
        else:
            client.order(name, "stop")
            job = client.wait_for_job(name, _is_in("stopped", "drained"), "stopped", timeout)
        _show_job(job, as_json)


@job_app.command("restart")
def restart_job(
    name: Name, timeout: Timeout = 120, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """End the job's run after its current slice, begin a new one, and wait until that runs."""
    with _client(data_dir, url) as client:
        before = client.order(name, "restart")["epoch"]
        is_running = _is_in("running")
        job = client.wait_for_job(name, lambda job: job["epoch"] > before and is_running(job), "running again", timeout)
        _show_job(job, as_json)


From = Annotated[
    str | None, typer.Option("--from", help="Only windows that end after this time: ISO 8601, UTC unless it says.")
]
To = Annotated[str | None, typer.Option("--to", help="Only windows that end at or before this time.")]


@app.command("audit")
@job_app.command("audit")
def audit_job(
    name: Name,
    after: From = None,
    up_to: To = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Compute every result anew from log and ledger, and compare with the index. Exit code 1 when anything differs."""
    after_ms, up_to_ms = _moment(after, "--from"), _moment(up_to, "--to")
    with _client(data_dir, url) as client, _audit_bar(as_json) as told:
        client.start_audit(name, after_ms, up_to_ms)
        report = client.wait_for_audit(name, told)
    _show(report, as_json, lambda: display.audit_tables(report))
    if report["outcome"] != "clean":
        raise StrandlineError(display.audit_sentence(report))
    if not as_json:
        print(display.audit_sentence(report))


@job_app.command("backfill")
def backfill_job(
    name: Name,
    after: From = None,
    up_to: To = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is complete.")] = True,
    cancel: Annotated[bool, typer.Option("--cancel", help="Give up the one that is under way.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Compute windows of the past anew with the job's present version, beside the running job, and show them when all are
    there."""
    from_ms, to_ms = _moment(after, "--from"), _moment(up_to, "--to")
    if cancel != (from_ms is None) or (cancel and to_ms is not None):
        raise typer.BadParameter("give --from TIME, and --to TIME where it shall end, or --cancel alone")
    with _client(data_dir, url) as client:
        if from_ms is None:
            answer = client.cancel_backfill(name, _open_backfill(client, name))
        else:
            answer = client.start_backfill(name, from_ms, to_ms)
        if wait and not cancel:
            with _backfill_bar(as_json) as told:
                answer = client.wait_for_backfill(name, answer["generation"], told)
    _show(answer, as_json, lambda: [display.backfill_table(answer)])


@job_app.command("backfills")
def list_backfills(name: Name, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """The job's backfills, one a line."""
    with _client(data_dir, url) as client:
        answer = client.backfills(name)
    _show({"backfills": answer}, as_json, lambda: [display.backfills_table(answer)])


@stream_app.command("list")
def list_streams(data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """All streams, one a line."""
    with _client(data_dir, url) as client:
        answer = client.get("/v1/streams")
    _show(answer, as_json, lambda: [display.streams_table(answer["streams"])])


@stream_app.command("show")
def show_stream(
    name: Annotated[str, typer.Argument(help="The stream's name.")],
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """One stream: fields, partitions, offsets, retention."""
    with _client(data_dir, url) as client:
        answer = client.stream(name)
    _show(answer, as_json, lambda: display.stream_tables(answer))


@dead_letters_app.command("list")
def list_dead_letters(
    job: Name,
    after: Annotated[int, typer.Option(min=-1, help="Only those with a higher number.")] = -1,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 100,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """The job's dead letters, the oldest first."""
    with _client(data_dir, url) as client:
        answer = client.dead_letters(job, after, limit)
    _show(answer, as_json, lambda: [display.dead_letters_table(answer["dead_letters"])])


@dead_letters_app.command("show")
def show_dead_letter(
    job: Name,
    number: Annotated[int, typer.Argument(min=0, help="As the list gives it.")],
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """One dead letter, with the sender's bytes whole."""
    with _client(data_dir, url) as client:
        answer = client.dead_letter(job, number)
    _show(answer, as_json, lambda: [display.dead_letter_table(answer)])


@pipeline_app.command("check")
def check_pipeline(
    file: File,
    stream: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="A file with the stream.")] = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Judge a pipeline and change nothing. Needs no stack when the files hold its stream too."""
    from strandline.services.rest.checking import check_without_stack

    files = [stream, file] if stream else [file]
    text, name_source = _join(files)
    judged = check_without_stack(text, str(file))
    if judged is not None:
        answer = judged.model_dump()
    else:
        with _client(data_dir, url) as client:
            answer = client.check(text, str(file))
    problems = [
        name_source(Problem(one["detail"], one["pointer"], one["source"], one["line"])) for one in answer["problems"]
    ]
    for shown, problem in zip(answer["problems"], problems, strict=True):
        shown.update(source=problem.source, line=problem.line)
    if as_json:
        _print_json(answer)
    if problems:
        raise InvalidDocument(problems)
    if not as_json:
        Console().print(display.stages_table(answer["stages"]))


def main() -> None:
    """The door: our own errors become a sentence on stderr and exit code 1."""
    try:
        app(prog_name="strandline")
    except StrandlineError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough, as in `| head`
        sys.exit(1)


def _settings() -> Any:
    from pydantic import ValidationError

    from strandline.core.settings import Settings

    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        name = f"STRANDLINE_{'_'.join(str(part) for part in first['loc']).upper()}"
        raise InvalidSettings(f"{name} is wrong: {first['msg']}; correct it or unset it") from error


def _client(data_dir: Path | None, url: str | None) -> ControlClient:
    """The control service of `--data-dir`, else of `--url`, else of the usual data directory."""
    if url and data_dir is None:
        return ControlClient(url)
    from strandline.services.embedded.addresses import read_stack

    return ControlClient(read_stack(data_dir or _settings().data_dir).api_url)


def _join(files: list[Path]) -> tuple[bytes, Callable[[Problem], Problem]]:
    """The files as one text, so that they are judged together, and what leads a problem back to its file and line."""
    parts: list[bytes] = []
    starts: list[tuple[int, Path]] = []
    line = 0
    for file in files:
        part = file.read_bytes()
        if parts:
            parts.append(b"\n---\n")
            line += 2
        starts.append((line, file))
        line += part.count(b"\n")
        parts.append(part)

    def name_source(problem: Problem) -> Problem:
        if problem.line is None:
            return problem
        start, file = next((start, file) for start, file in reversed(starts) if problem.line > start)
        return Problem(problem.message, problem.path, str(file), problem.line - start)

    return b"".join(parts), name_source


def _moment(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {text!r} is no time; write 2026-11-21T10:00:00Z") from error
    since_1970 = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return since_1970 // timedelta(milliseconds=1)


@contextmanager
def _audit_bar(as_json: bool) -> Iterator[Callable[[Answer], None]]:
    """A bar on a terminal: the step, and how many of its tasks are done. On no terminal, nothing."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=as_json or not console.is_terminal) as progress:
        bar = progress.add_task("starting", total=None)

        def told(audit: Answer) -> None:
            progress.update(bar, description=audit["step"], completed=audit["done"], total=audit["total"] or None)

        yield told


@contextmanager
def _backfill_bar(as_json: bool) -> Iterator[Callable[[Answer], None]]:
    """A bar on a terminal: the state, and how many of the records are read. On no terminal, nothing."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=as_json or not console.is_terminal) as progress:
        bar = progress.add_task("requested", total=None)

        def told(backfill: Answer) -> None:
            progress.update(
                bar,
                description=f"{backfill['state']}, records",
                completed=backfill["records_done"],
                total=backfill["records"] or None,
            )

        yield told


def _open_backfill(client: ControlClient, job: str) -> int:
    found = [one["generation"] for one in client.backfills(job) if one["ended_ms"] is None]
    if not found:
        raise NotFound(f"job {job} has no backfill under way; see all with: strandline job backfills {job}")
    return int(found[0])


def _is_in(*states: str) -> Callable[[Answer], bool]:
    return lambda job: job["state"] in states


def _show_job(job: Answer, as_json: bool) -> None:
    _show(job, as_json, lambda: [display.job_table(job)])


def _show(answer: Answer, as_json: bool, tables: Callable[[], list[Any]]) -> None:
    if as_json:
        _print_json(answer)
        return
    console = Console()
    for table in tables():
        console.print(table)


def _print_json(answer: Any) -> None:
    print(json.dumps(answer, indent=2, ensure_ascii=False))


def _console(as_json: bool) -> Console:
    """Progress goes to stderr when stdout carries an answer for a machine."""
    return Console(stderr=as_json)


if __name__ == "__main__":
    main()
