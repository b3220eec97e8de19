"""The verbs on jobs, their audits and their backfills."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer
from rich.text import Text

from strandline.core.errors import NotFound, StrandlineError
from strandline.services.cli import display
from strandline.services.cli.options import AsJson, DataDir, From, Name, Timeout, To, Url, connect, parse_time
from strandline.services.cli.output import Answer, AnsweredError, show, waiting

if TYPE_CHECKING:
    from strandline.services.client import ControlClient

audit_app = typer.Typer()
job_app = typer.Typer(help="Jobs: running pipelines.", no_args_is_help=True)

AUDIT_EXAMPLE = "Example: strandline audit nab --from 2013-12-03T00:00:00Z"
DIFFERS_EXIT_CODE = 3


@job_app.command("list", epilog="Example: strandline job list")
def list_jobs(data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """All jobs, one a line."""
    with connect(data_dir, url) as client:
        answer = client.get("/v1/jobs")
    show(answer, as_json, lambda: display.jobs_tables(answer["jobs"]))


@job_app.command("status", epilog="Example: strandline job status nab")
def show_job(name: Name, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """One job: state, watermark, lag, counts."""
    with connect(data_dir, url) as client:
        _show_job(client.job(name), as_json)


@job_app.command("explain", epilog="Example: strandline job explain nab")
def explain_job(name: Name, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """Why the job has no output, or what it waits for, and what to do."""
    with connect(data_dir, url) as client:
        answer = client.get(f"/v1/jobs/{quote(name, safe='')}/explanation")
    show(answer, as_json, lambda: [Text(f"{answer['sentence']}\nNext: {answer['next']}")])


@job_app.command("start", epilog="Example: strandline job start nab")
def start_job(
    name: Name, timeout: Timeout = 120, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Start the job and wait until it runs."""
    with connect(data_dir, url) as client:
        client.order(name, "start")
        job = _wait(client, name, _is_in("running"), "running", timeout)
    _show_job(job, as_json)


@job_app.command("stop", epilog="Example: strandline job stop nab --drain")
def stop_job(
    name: Name,
    drain: Annotated[bool, typer.Option("--drain", help="Close every open window first.")] = False,
    timeout: Timeout = 300,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """End the job after its current slice, and wait until it has ended."""
    with connect(data_dir, url) as client:
        if drain:
            client.order(name, "drain")
            job = _wait(client, name, _is_in("drained"), "drained", timeout)
        else:
            client.order(name, "stop")
            job = _wait(client, name, _is_in("stopped", "drained"), "stopped", timeout)
    _show_job(job, as_json)


@job_app.command("restart", epilog="Example: strandline job restart nab")
def restart_job(
    name: Name, timeout: Timeout = 120, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """End the job's run after its current slice, begin a new one, and wait until that runs."""
    with connect(data_dir, url) as client:
        before = client.order(name, "restart")["epoch"]
        is_running = _is_in("running")
        job = _wait(client, name, lambda job: job["epoch"] > before and is_running(job), "running again", timeout)
    _show_job(job, as_json)


@audit_app.command("audit", epilog=AUDIT_EXAMPLE)
@job_app.command("audit", epilog=AUDIT_EXAMPLE)
def audit_job(
    name: Name,
    after: From = None,
    up_to: To = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Compute every result again from log and ledger, and compare with the index. Exit code 0: clean; 1: failed or
    incomplete; 3: something differs."""
    after_ms, up_to_ms = parse_time(after, "--from"), parse_time(up_to, "--to")
    with connect(data_dir, url) as client, waiting(f"starting the audit of job {name}") as tell:
        client.start_audit(name, after_ms, up_to_ms)
        report = client.wait_for_audit(
            name, lambda audit: tell(f"audit of job {name}: {audit['step']}", done=audit["done"], total=audit["total"])
        )
    sentence = display.audit_sentence(report)
    if report["outcome"] == "clean":
        show(report, as_json, lambda: [*display.audit_tables(report), Text(sentence)])
        return
    if not as_json:
        show(report, as_json, lambda: display.audit_tables(report))
    differs = report["outcome"] == "differences"
    error = StrandlineError(sentence)
    error.code = "audit_differs" if differs else "audit_incomplete"
    raise AnsweredError(report, error, DIFFERS_EXIT_CODE if differs else 1)


@job_app.command("backfill", epilog="Example: strandline job backfill nab --from 2013-12-03T00:00:00Z")
def backfill_job(
    name: Name,
    after: From = None,
    up_to: To = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the backfill is complete.")] = True,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the backfill that is under way.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Compute past windows again with the job's present version, beside the running job, and replace the old results when all
    are complete."""
    from_ms, to_ms = parse_time(after, "--from"), parse_time(up_to, "--to")
    if cancel != (from_ms is None) or (cancel and to_ms is not None):
        raise typer.BadParameter("give --from TIME, and --to TIME where it is to end, or --cancel alone")
    with connect(data_dir, url) as client:
        if from_ms is None:
            answer = client.cancel_backfill(name, _open_backfill(client, name))
        else:
            answer = client.start_backfill(name, from_ms, to_ms)
        if wait and not cancel:
            with waiting(f"waiting for the backfill of job {name}") as tell:
                answer = client.wait_for_backfill(
                    name,
                    answer["generation"],
                    lambda one: tell(
                        f"backfill of job {name}: {one['state']}, records",
                        done=one["records_done"],
                        total=one["records"],
                    ),
                )
    show(answer, as_json, lambda: [display.backfill_table(answer)])


@job_app.command("backfills", epilog="Example: strandline job backfills nab")
def list_backfills(name: Name, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """The job's backfills, one a line."""
    with connect(data_dir, url) as client:
        answer = client.backfills(name)
    show({"backfills": answer}, as_json, lambda: [display.backfills_table(answer)])


def _wait(client: ControlClient, name: str, is_so: Callable[[Answer], bool], what: str, timeout_s: float) -> Answer:
    """Wait until `is_so`, and show what the job does meanwhile."""
    with waiting(f"waiting until job {name} is {what}") as tell:

        def look(job: Answer) -> bool:
            lag = job["lag_records"]
            message = f" ({job['message']})" if job["message"] else ""
            tell(f"job {name} is {job['state']}{message}", f", {lag:,} records behind" if lag else "")
            return is_so(job)

        return client.wait_for_job(name, look, what, timeout_s)


def _open_backfill(client: ControlClient, job: str) -> int:
    found = [one["generation"] for one in client.backfills(job) if one["ended_ms"] is None]
    if not found:
        raise NotFound(f"job {job} has no backfill under way; see all with: strandline job backfills {job}")
    return int(found[0])


def _is_in(*states: str) -> Callable[[Answer], bool]:
    return lambda job: job["state"] in states


def _show_job(job: Answer, as_json: bool) -> None:
    show(job, as_json, lambda: [display.job_table(job)])
