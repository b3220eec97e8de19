"""Commands that start, stop, and check a stack: `up`, `down`, `example`, and `doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.core.errors import StrandlineError
from strandline.services.cli.options import AsJson, DataDir, Url, connect
from strandline.services.cli.output import AnsweredError, print_json, progress_console, show, waiting

if TYPE_CHECKING:
    from strandline.core.settings import Settings
    from strandline.services.doctor.finding import Check, Finding
    from strandline.services.embedded.addresses import StackAddresses

# The commands that start servers import them, so that `job status` is quick.

stack_app = typer.Typer()

_SIGNS = {"ok": "[green]✓[/]", "warning": "[yellow]![/]", "wrong": "[red]✗[/]"}


@stack_app.command(epilog="Example: strandline up --detach --data-dir /tmp/stack --port-offset 100")
def up(
    data_dir: DataDir = None,
    port_offset: Annotated[
        int | None, typer.Option(help="Number that is added to every port. Default: that of the running stack, or 0.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when all parts are ready, and leave the stack running.")
    ] = False,
    kafka: Annotated[
        str | None, typer.Option(help="Use this Kafka (HOST:PORT[,...]) instead of the embedded one.")
    ] = None,
    elasticsearch: Annotated[
        str | None, typer.Option(help="Use the Elasticsearch at this URL instead of the embedded one.")
    ] = None,
    mqtt: Annotated[str | None, typer.Option(help="Read records from the MQTT broker at this URL.")] = None,
    ledger: Annotated[str | None, typer.Option(help="Use the ledger at this SQLAlchemy URL.")] = None,
    passwords: Annotated[
        bool | None,
        typer.Option(
            "--passwords/--no-passwords",
            help="Let the embedded servers require passwords. Default: as at the last start, or yes.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start the missing parts of the embedded stack: Kafka, Elasticsearch, MQTT broker, control service, gateways.

    Ctrl-C stops the stack. If all parts run, the command prints them and exits with 0. An address of your own server
    replaces the embedded one; `embedded` as the address restores it.
    """
    from strandline.core.settings import Settings
    from strandline.services.embedded import stack
    from strandline.services.embedded.outside_servers import choose_outside, take_over
    from strandline.services.embedded.passwords import choose_passwords

    directory = data_dir or Settings.read().data_dir
    port_offset = stack.running_port_offset(directory) if port_offset is None else port_offset
    given = {"kafka": kafka, "elasticsearch": elasticsearch, "mqtt": mqtt, "ledger": ledger}
    outside = choose_outside(given, directory, port_offset)
    take_over(outside)
    console = progress_console(as_json)
    settings = Settings.read()
    asks = choose_passwords(passwords, settings, directory)
    started = stack.up(settings, directory, port_offset, detach, console, outside, passwords=asks)
    if as_json:
        state = {"already_ran": started.was_running, "repaired": started.repaired, "running": started.running}
        print_json({**asdict(started.addresses), **state})
    if detach or (started.was_running and not started.repaired):
        return
    console.print("Ctrl-C stops it.")
    try:
        started.wait()
    finally:
        started.stop()


@stack_app.command(epilog="Example: strandline example --seconds 60")
def example(
    data_dir: DataDir = None,
    port_offset: Annotated[int, typer.Option(help="Number that is added to every port.")] = 0,
    speed: Annotated[float, typer.Option(min=1, help="Speed of simulated time, relative to the clock.")] = 120.0,
    seconds: Annotated[float | None, typer.Option(min=1, help="Duration in seconds. Default: until Ctrl-C.")] = None,
) -> None:
    """Start the embedded stack with a simulated wind farm and its job, and show the results. Ctrl-C stops it."""
    from strandline.core.settings import Settings
    from strandline.example.run import run_example

    settings = Settings.read()
    code = run_example(settings, data_dir or settings.data_dir, port_offset, speed, progress_console(False), seconds)
    raise typer.Exit(code)


@stack_app.command(epilog="Example: strandline down --data-dir /tmp/stack")
def down(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Stop all processes that `up` started, and the runners. The next `up` starts the running jobs again."""
    from strandline.core.settings import Settings
    from strandline.services.embedded import stack

    directory = data_dir or Settings.read().data_dir
    stack.down(directory, progress_console(as_json))
    if as_json:
        print_json({"data_dir": str(directory), "stopped": True})


@stack_app.command("open", epilog="Example: strandline open --data-dir /tmp/stack")
def open_page(data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """Print the address of the console, the web page of the control service, and open it in a browser.

    If the service requires a sign-in, the command also prints the file with the token of the stack.
    """
    address, token_file = _page_of(data_dir, url)
    is_opened = not as_json and typer.launch(address) == 0
    answer = {"page": address, "token_file": str(token_file) if token_file else None, "opened": is_opened}
    lines = [address] + ([f"sign in with the token in {token_file}"] if token_file is not None else [])
    show(answer, as_json, lambda: lines)


def _page_of(data_dir: Path | None, url: str | None) -> tuple[str, Path | None]:
    """Return the address of the console, and the file with the token of the stack if it has one."""
    if url and data_dir is None:
        return f"{url.rstrip('/')}/", None
    from strandline.core.settings import Settings
    from strandline.services.embedded.addresses import read_stack
    from strandline.services.embedded.admin_token import ADMIN_TOKEN_FILE

    addresses = read_stack(data_dir or Settings.read().data_dir)
    token_file = Path(addresses.data_dir) / ADMIN_TOKEN_FILE
    return f"{addresses.api_url}/", token_file if token_file.exists() else None


@stack_app.command(epilog="Example: strandline netrc --data-dir /tmp/stack")
def netrc(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Print the path of the file with which curl logs in to the Elasticsearch of the embedded stack.

    Use it in: curl --netrc-file "$(strandline netrc)" URL. If Elasticsearch needs no password, the path is /dev/null, so that
        the same command works.
    """
    from strandline.core.settings import Settings
    from strandline.services.embedded.addresses import read_stack
    from strandline.services.embedded.passwords import netrc_file

    path = netrc_file(read_stack(data_dir or Settings.read().data_dir))
    show({"netrc": str(path)}, as_json, lambda: [str(path)])


@stack_app.command(epilog="Example: strandline doctor --data-dir /tmp/stack")
def doctor(data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """Check servers, rights, versions, and this machine, and show what to do. The exit code is 1 if a check fails.

    The command checks the stack in --data-dir or in the usual data directory. Without a stack, it checks the servers of
    the settings.
    """
    from strandline.services.doctor.examination import DEADLINE_S
    from strandline.services.doctor.finding import State, examine

    settings, addresses = _whose(data_dir, url)
    checks = _checks(settings, addresses, url if data_dir is None else None)
    with waiting("looking at servers and machine"):
        found = examine(checks, DEADLINE_S, settings)
    wrong = sum(one.state is State.WRONG for one in found)
    warnings = sum(one.state is State.WARNING for one in found)
    answer = {"findings": [asdict(one) for one in found], "wrong": wrong, "warnings": warnings}
    if not wrong:
        show(answer, as_json, lambda: [_text([*_lines(found), _summary(wrong, warnings)])])
        return
    if not as_json:
        show(answer, as_json, lambda: [_text(_lines(found))])
    error = StrandlineError(
        f"{_summary(wrong, warnings)}; follow the remedy below each of them, then run strandline doctor again"
    )
    error.code = "doctor_found_wrong"
    raise AnsweredError(answer, error)


def _whose(data_dir: Path | None, url: str | None) -> tuple[Settings, StackAddresses | None]:
    """Return the settings to check, and the addresses of their stack."""
    from strandline.core.settings import Settings
    from strandline.services.embedded.addresses import STACK_FILE, read_stack, stack_settings
    from strandline.services.embedded.outside_servers import take_over
    from strandline.services.embedded.passwords import use_logins

    directory = data_dir or Settings.read().data_dir
    if data_dir is None and (url or not (directory / STACK_FILE).exists()):
        return Settings.read(), None
    addresses = read_stack(directory)
    take_over(addresses.outside_servers())
    use_logins(addresses)
    return stack_settings(Settings.read(), addresses), addresses


def _checks(settings: Settings, addresses: StackAddresses | None, url: str | None) -> Mapping[str, Check]:
    from strandline.services.doctor.examination import server_checks
    from strandline.services.doctor.machine import check_machine, check_ports
    from strandline.services.embedded import preflight
    from strandline.services.embedded.addresses import Ports
    from strandline.services.embedded.artifacts import find_java
    from strandline.services.embedded.passwords import check_passwords
    from strandline.services.processes.pids import PidFile

    servers = addresses.servers() if addresses is not None else None
    checks: dict[str, Check] = {
        **server_checks(settings, servers),
        "machine": partial(check_machine, settings, find_java),
    }
    if addresses is not None:
        running = PidFile(settings.data_dir).alive()
        parts = [name for name in preflight.ports_of_parts() if name not in running and name not in addresses.outside]
        ports = preflight.ports_to_take(Ports.moved(addresses.port_offset), parts)
        checks["passwords"] = partial(check_passwords, addresses)
        checks["ports"] = partial(check_ports, ports, preflight.is_free, f"stop it, or {preflight.MOVE_PORTS}")
    if url:
        checks["control"] = partial(_of_control, url)
    return checks


def _of_control(url: str) -> list[Finding]:
    from strandline.services.doctor.finding import ok

    with connect(None, url) as client:
        client.get("/healthz")
    return [ok("control service", f"answers at {url}")]


def _summary(wrong: int, warnings: int) -> str:
    if not wrong and not warnings:
        return "all is well"
    return f"{wrong} wrong, {warnings} to look at"


def _lines(found: list[Finding]) -> list[str]:
    from rich.markup import escape

    lines = []
    for one in found:
        lines.append(f"{_SIGNS[one.state]} {escape(f'{one.subject}: {one.message}')}")
        if one.remedy:
            lines.append(f"    {escape(one.remedy)}")
    return lines


def _text(lines: list[str]) -> Any:
    from rich.text import Text

    return Text.from_markup("\n".join(lines))
