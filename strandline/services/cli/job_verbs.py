"""The verbs on jobs, their audits and their backfills."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console

from strandline.core.errors import NotFound, StrandlineError
from strandline.services.cli import display
from strandline.services.cli.options import AsJson, DataDir, From, Name, Timeout, To, Url, connect, parse_time
from strandline.services.cli.output import show
from strandline.services.client import Answer, ControlClient

audit_app = typer.Typer()
job_app = typer.Typer(help="Jobs: running pipelines.", no_args_is_help=True)


@job_app.command("list")
def list_jobs(data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """All jobs, one a line."""
    with connect(data_dir, url) as client:
        answer = client.get("/v1/jobs")
    show(answer, as_json, lambda: display.jobs_tables(answer["jobs"]))


@job_app.command("status")
def show_job(name: Name, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """One job: state, watermark, lag, counts."""
    with connect(data_dir, url) as client:
        _show_job(client.job(name), as_json)


@job_app.command("start")
def start_job(
    name: Name, timeout: Timeout = 120, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Start the job and wait until it runs."""
    with connect(data_dir, url) as client:
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
    with connect(data_dir, url) as client:
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
    with connect(data_dir, url) as client:
        before = client.order(name, "restart")["epoch"]
        is_running = _is_in("running")
        job = client.wait_for_job(name, lambda job: job["epoch"] > before and is_running(job), "running again", timeout)
        _show_job(job, as_json)


@audit_app.command("audit")
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
    after_ms, up_to_ms = parse_time(after, "--from"), parse_time(up_to, "--to")
    with connect(data_dir, url) as client, _audit_bar(as_json) as told:
        client.start_audit(name, after_ms, up_to_ms)
        report = client.wait_for_audit(name, told)
    show(report, as_json, lambda: display.audit_tables(report))
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
    from_ms, to_ms = parse_time(after, "--from"), parse_time(up_to, "--to")
    if cancel != (from_ms is None) or (cancel and to_ms is not None):
        raise typer.BadParameter("give --from TIME, and --to TIME where it shall end, or --cancel alone")
    with connect(data_dir, url) as client:
        if from_ms is None:
            answer = client.cancel_backfill(name, _open_backfill(client, name))
        else:
            answer = client.start_backfill(name, from_ms, to_ms)
        if wait and not cancel:
            with _backfill_bar(as_json) as told:
                answer = client.wait_for_backfill(name, answer["generation"], told)
    show(answer, as_json, lambda: [display.backfill_table(answer)])


@job_app.command("backfills")
def list_backfills(name: Name, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """The job's backfills, one a line."""
    with connect(data_dir, url) as client:
        answer = client.backfills(name)
    show({"backfills": answer}, as_json, lambda: [display.backfills_table(answer)])


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
    show(job, as_json, lambda: [display.job_table(job)])
