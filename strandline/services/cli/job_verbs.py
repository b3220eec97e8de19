"""Commands for jobs, their audits, and their backfills."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from strandline.core.errors import NotFound, StrandlineError
from strandline.ledger.states import COMPLETED, FollowedEvents
from strandline.services.cli import display
from strandline.services.cli.options import (
    AsJson,
    DataDir,
    From,
    Name,
    Timeout,
    To,
    TokenFile,
    Url,
    connect,
    parse_time,
)
from strandline.services.cli.output import AnsweredError, JsonObject, print_next_page, printable, show, waiting

if TYPE_CHECKING:
    from strandline.services.client import ControlClient

audit_app = typer.Typer()
job_app = typer.Typer(help="Jobs: running pipelines.", no_args_is_help=True)

AUDIT_EXAMPLE = "Example: strandline audit nab --from 2013-12-03T00:00:00Z"
DIFFERS_EXIT_CODE = 3
WATCH_S = 1.0
"""Interval in seconds at which a job or its log is read."""


@job_app.command("list", epilog="Example: strandline job list")
def list_jobs(data_dir: DataDir = None, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """List all jobs."""
    with connect(data_dir, url, token_file) as client:
        answer = client.get("/v1/jobs")
    show(answer, as_json, lambda: display.jobs_tables(answer["jobs"]))


@job_app.command("status", epilog="Example: strandline job status nab")
def show_job(
    name: Name,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh the output until Ctrl-C.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the state, watermark, lag, and counts of a job."""
    with connect(data_dir, url, token_file) as client:
        if watch:
            _watch_job(client, name, as_json)
            return
        _show_job(client.job(name), as_json)


@job_app.command("logs", epilog="Example: strandline job logs nab --follow")
def show_logs(
    name: Name,
    lines: Annotated[int, typer.Option(min=1, max=10_000, help="Number of last lines.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the log of the current run of the job, or of its last run."""
    from strandline.services.client import RetryingPoller

    path, patience = f"/v1/jobs/{quote(name, safe='')}/log", RetryingPoller()
    with connect(data_dir, url, token_file) as client, suppress(KeyboardInterrupt):
        answer = patience.ask(client.get, path, lines=lines)
        if not follow:
            show(answer, as_json, lambda: [Text("\n".join(answer["lines"]))])
            return
        while True:
            for line in answer["lines"]:
                print(json.dumps({"line": line}) if as_json else printable(line), flush=True)
            time.sleep(WATCH_S)
            answer = patience.ask(client.get, path, after=answer["byte_next"])


@job_app.command("explain", epilog="Example: strandline job explain nab")
def explain_job(
    name: Name, data_dir: DataDir = None, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """Explain why the job has no output or what it waits for, and what to do."""
    with connect(data_dir, url, token_file) as client:
        answer = client.get(f"/v1/jobs/{quote(name, safe='')}/explanation")
    show(
        answer,
        as_json,
        lambda: [
            Text(
                "\n".join([answer["message"], f"Next: {answer['next']}", *(f"Note: {one}" for one in answer["notes"])])
            )
        ],
    )


@job_app.command("start", epilog="Example: strandline job start nab")
def start_job(
    name: Name,
    timeout: Timeout = 120,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Start the job and wait until it runs."""
    with connect(data_dir, url, token_file) as client:
        client.order(name, "start")
        job = _wait(client, name, _is_in("running"), "running", timeout)
    _show_job(job, as_json)


@job_app.command("stop", epilog="Example: strandline job stop nab --drain")
def stop_job(
    name: Name,
    drain: Annotated[
        bool, typer.Option("--drain", help="Read the streams to their end and close every open window first.")
    ] = False,
    timeout: Timeout = 300,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Stop the job after its current slice, and wait until it has stopped."""
    with connect(data_dir, url, token_file) as client:
        if drain:
            client.order(name, "drain")
            job = _wait(client, name, _is_in("drained", COMPLETED), "drained", timeout)
        else:
            client.order(name, "stop")
            job = _wait(client, name, _is_in("stopped", "drained", COMPLETED), "stopped", timeout)
    _show_job(job, as_json)


@job_app.command("restart", epilog="Example: strandline job restart nab")
def restart_job(
    name: Name,
    timeout: Timeout = 120,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Stop the job after its current slice, start a new run, and wait until it runs."""
    with connect(data_dir, url, token_file) as client:
        before = client.order(name, "restart")["epoch"]
        is_running = _is_in("running")
        job = _wait(client, name, lambda job: job["epoch"] > before and is_running(job), "running again", timeout)
    _show_job(job, as_json)


@job_app.command("delete", epilog="Example: strandline job delete nab --results")
def delete_job(
    name: Name,
    results: Annotated[bool, typer.Option("--results", help="Also delete the result indices of the job.")] = False,
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters", help="Also delete the dead letters of the job.")
    ] = False,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete a stopped job. Its results and dead letters are kept unless you pass the options.

    For a job that was deleted before, the options delete its results or dead letters now.
    """
    with connect(data_dir, url, token_file) as client:
        answer = client.delete_job(name, results=results, dead_letters=dead_letters)
    show(answer, as_json, lambda: [Text(display.deleted_job_summary(answer))])


@job_app.command("reset", epilog="Example: strandline job reset nab --to earliest")
def reset_job(
    name: Name,
    to: Annotated[
        str,
        typer.Option(
            help="start (the start in the document), earliest, latest, or a time of arrival (ISO 8601; UTC if it names no zone)."
        ),
    ],
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Reset a stopped job to a position of its stream. Its results begin a new generation. Start the job afterwards."""
    place = to if to in ("start", "earliest", "latest") else str(max(0, parse_time(to, "--to") or 0))
    with connect(data_dir, url, token_file) as client:
        answer = client.reset_job(name, place)
    show(
        answer,
        as_json,
        lambda: [
            Text(
                f"job {name} was reset to {to}, with generation {answer['generation']} of results; to start it, run "
                f"strandline job start {name}"
            )
        ],
    )


@audit_app.command("audit", epilog=AUDIT_EXAMPLE)
@job_app.command("audit", epilog=AUDIT_EXAMPLE)
def audit_job(
    name: Name,
    after: From = None,
    up_to: To = None,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Recompute every result from log and ledger, and compare it with the index.

    Exit codes: 0: no difference; 1: the audit failed or is incomplete; 3: results differ.
    """
    after_ms, up_to_ms = parse_time(after, "--from"), parse_time(up_to, "--to")
    with connect(data_dir, url, token_file) as client, waiting(f"starting the audit of job {name}") as progress:
        client.start_audit(name, after_ms, up_to_ms)
        report = client.wait_for_audit(
            name,
            lambda audit: progress(f"audit of job {name}: {audit['step']}", done=audit["done"], total=audit["total"]),
        )
    message = display.audit_summary(report)
    if report["outcome"] == "clean":
        show(report, as_json, lambda: [*display.audit_tables(report), Text(message)])
        return
    if not as_json:
        show(report, as_json, lambda: display.audit_tables(report))
    differs = report["outcome"] == "differences"
    error = StrandlineError(message)
    error.code = "audit_differs" if differs else "audit_incomplete"
    raise AnsweredError(report, error, DIFFERS_EXIT_CODE if differs else 1)


@job_app.command("backfill", epilog="Example: strandline job backfill nab --from 2013-12-03T00:00:00Z")
def backfill_job(
    name: Name,
    after: From = None,
    up_to: To = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the backfill is complete.")] = True,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the running backfill.")] = False,
    missing: Annotated[
        bool,
        typer.Option("--missing", help="Restore only the results that a store lost, and start the job."),
    ] = False,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Recompute past windows with the current version of the job, while the job keeps running.

    The new results replace the old ones when all are complete. With --missing, the job emits only the results that a
    store lost, under the same ids.
    """
    from_ms, to_ms = parse_time(after, "--from"), parse_time(up_to, "--to")
    if missing:
        if cancel or from_ms is not None or to_ms is not None:
            raise typer.BadParameter("pass --missing alone; the ledger and the stores determine the range")
        with connect(data_dir, url, token_file) as client:
            job = client.order(name, "restore")
            if wait:
                what = "running with all results restored"
                with waiting(f"waiting until job {name} has restored its missing results"):
                    job = client.wait_for_job(name, _has_restored, what, float("inf"))
        _show_job(job, as_json)
        return
    if cancel != (from_ms is None) or (cancel and to_ms is not None):
        raise typer.BadParameter(
            "pass --from TIME (and --to TIME to limit the range), or only --missing, or only --cancel"
        )
    with connect(data_dir, url, token_file) as client:
        if from_ms is None:
            answer = client.cancel_backfill(name, _open_backfill(client, name))
        else:
            answer = client.start_backfill(name, from_ms, to_ms)
        if wait and not cancel:
            with waiting(f"waiting for the backfill of job {name}") as report:
                answer = client.wait_for_backfill(
                    name,
                    answer["generation"],
                    lambda one: report(
                        f"backfill of job {name}: {one['state']}, records",
                        done=one["records_done"],
                        total=one["records"],
                    ),
                )
    show(answer, as_json, lambda: [display.backfill_table(answer)])


@job_app.command("backfills", epilog="Example: strandline job backfills nab")
def list_backfills(
    name: Name, data_dir: DataDir = None, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """List the backfills of the job."""
    with connect(data_dir, url, token_file) as client:
        answer = client.backfills(name)
    show({"backfills": answer}, as_json, lambda: [display.backfills_table(answer)])


@job_app.command("versions", epilog="Example: strandline job versions nab --show 3")
def list_versions(
    name: Name,
    show_version: Annotated[
        int | None, typer.Option("--show", min=1, help="Print the document of this version, to apply it again.")
    ] = None,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List the versions of the job, the newest first, with the time and the principal that applied each."""
    with connect(data_dir, url, token_file) as client:
        if show_version is not None:
            text = client.document(name, show_version)
            show({"version": show_version, "text": text}, as_json, lambda: [Text(text.rstrip("\n"))])
            return
        versions = client.versions(name)
    show({"versions": versions}, as_json, lambda: [display.versions_table(versions)])


@job_app.command("events", epilog="Example: strandline job events nab --last 20")
def list_events(
    name: Annotated[
        str | None, typer.Argument(help="Name of the job. Default: events of all jobs, streams, and services.")
    ] = None,
    after: Annotated[int, typer.Option(min=0, help="Only events with a higher id.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of events, the oldest first.")] = 1000,
    last: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Number of newest events. Not with --limit.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new events until Ctrl-C.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List events and their cause, the oldest first."""
    query = {"after": after, "limit": limit} | ({} if name is None else {"job": name})
    query |= {} if last is None else {"last": last}
    with connect(data_dir, url, token_file) as client:
        if follow:
            with suppress(KeyboardInterrupt):
                _follow_events(client, query, as_json)
            return
        answer = client.get("/v1/events", **query)
    show(answer, as_json, lambda: [display.events_table(answer["events"])])
    print_next_page(answer, "the newest: --last N")


def _follow_events(client: ControlClient, query: dict[str, Any], as_json: bool) -> None:
    """Print events as they arrive, one per line."""
    from strandline.services.client import RetryingPoller

    patience, followed = RetryingPoller(), FollowedEvents(query["after"])
    while True:
        answer = patience.ask(client.get, "/v1/events", **query)
        found = {event["id"]: event for event in answer["events"]}
        for number in sorted(followed.new(found)):
            event = found[number]
            print(json.dumps(event) if as_json else printable(display.event_line(event)), flush=True)
        if "last" in query and found:  # older events were not requested
            followed.begin = min(found) - 1
        query = {key: value for key, value in query.items() if key == "job"}
        query |= {"after": followed.after, "limit": 1_000}
        if not answer["next"]:
            time.sleep(WATCH_S)


def _wait(
    client: ControlClient, name: str, is_so: Callable[[JsonObject], bool], what: str, timeout_s: float
) -> JsonObject:
    """Wait until `is_so` returns True, and show the progress of the job."""
    with waiting(f"waiting until job {name} is {what}") as report:

        def look(job: JsonObject) -> bool:
            lag = job["lag_records"]
            message = f" ({job['message']})" if job["message"] else ""
            report(f"job {name} is {job['state']}{message}", f", {lag:,} records behind" if lag else "")
            return is_so(job)

        return client.wait_for_job(name, look, what, timeout_s)


def _has_restored(job: JsonObject) -> bool:
    return job["state"] == "running" and not job["restores"]


def _open_backfill(client: ControlClient, job: str) -> int:
    found = [one["generation"] for one in client.backfills(job) if one["ended_ms"] is None]
    if not found:
        raise NotFound(f"job {job} has no running backfill; to list all, run strandline job backfills {job}")
    return int(found[0])


def _watch_job(client: ControlClient, name: str, as_json: bool) -> None:
    """Show the job until Ctrl-C: in place on a terminal, elsewhere one line for each change."""
    from strandline.services.client import RetryingPoller

    console, patience = Console(), RetryingPoller()
    with suppress(KeyboardInterrupt):
        if console.is_terminal and not as_json:
            with Live(console=console, auto_refresh=False) as live:
                while True:
                    live.update(display.job_table(patience.ask(client.job, name)), refresh=True)
                    time.sleep(WATCH_S)
        before = None
        while True:
            job = patience.ask(client.job, name)
            line = json.dumps(job) if as_json else printable(display.job_line(job))
            shown = display.job_line(job)
            if shown != before:
                print(line, flush=True)
                before = shown
            time.sleep(WATCH_S)


def _is_in(*states: str) -> Callable[[JsonObject], bool]:
    return lambda job: job["state"] in states


def _show_job(job: JsonObject, as_json: bool) -> None:
    show(job, as_json, lambda: [display.job_table(job)])
