"""The verbs that start, stop and look at a stack: `up`, `down`, `example` and `doctor`."""

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

# The servers are imported by the verbs that start them, so that `job status` is quick.

stack_app = typer.Typer()

_SIGNS = {"ok": "[green]✓[/]", "warning": "[yellow]![/]", "wrong": "[red]✗[/]"}


@stack_app.command(epilog="Example: strandline up --detach --data-dir /tmp/stack --port-offset 100")
def up(
    data_dir: DataDir = None,
    port_offset: Annotated[
        int | None, typer.Option(help="Added to every port; default: that of the running stack, else 0.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return when all is ready, and leave it running.")] = False,
    kafka: Annotated[str | None, typer.Option(help="Use this Kafka, HOST:PORT[,...], and embed none.")] = None,
    elasticsearch: Annotated[str | None, typer.Option(help="Use the Elasticsearch at this URL.")] = None,
    mqtt: Annotated[str | None, typer.Option(help="Take records from the MQTT broker at this URL.")] = None,
    ledger: Annotated[str | None, typer.Option(help="Keep the ledger at this SQLAlchemy URL.")] = None,
    passwords: Annotated[
        bool | None,
        typer.Option(
            "--passwords/--no-passwords",
            help="Its own Kafka, Elasticsearch and MQTT broker ask for a password; default: yes, then as at the last start.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start the embedded stack, or what is missing of it: Kafka, Elasticsearch, MQTT broker, control service, gateways. Ctrl-C
    stops it. If all of it runs already, print what runs and end with 0. Servers of yours take the place of its own; `embedded`
    for an address takes its own again."""
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
    port_offset: Annotated[int, typer.Option(help="Added to every port.")] = 0,
    speed: Annotated[
        float, typer.Option(min=1, help="How much faster than the clock the turbines' time runs.")
    ] = 120.0,
    seconds: Annotated[float | None, typer.Option(min=1, help="End after so long; default: at Ctrl-C.")] = None,
) -> None:
    """Start the embedded stack with a simulated wind farm and its job, and show what happens. Ctrl-C stops it."""
    from strandline.core.settings import Settings
    from strandline.example.run import run_example

    settings = Settings.read()
    code = run_example(settings, data_dir or settings.data_dir, port_offset, speed, progress_console(False), seconds)
    raise typer.Exit(code)


@stack_app.command(epilog="Example: strandline down --data-dir /tmp/stack")
def down(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Stop everything that `up` started, and the runners. Jobs that run now run again after the next `up`."""
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

    Use it in: curl --netrc-file "$(strandline netrc)" URL. If Elasticsearch asks for no password, the path is /dev/null, so that
    the same command works.
    """
    from strandline.core.settings import Settings
    from strandline.services.embedded.addresses import read_stack
    from strandline.services.embedded.passwords import netrc_file

    path = netrc_file(read_stack(data_dir or Settings.read().data_dir))
    show({"netrc": str(path)}, as_json, lambda: [str(path)])


@stack_app.command(epilog="Example: strandline doctor --data-dir /tmp/stack")
def doctor(data_dir: DataDir = None, url: Url = None, as_json: AsJson = False) -> None:
    """Look at each server, right, version and at this machine, and say what to do. Ends with 1 where something is wrong.

    With --data-dir, or where a stack was started in the usual data directory, of that stack; else of what the settings name.
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
    error = StrandlineError(f"{_summary(wrong, warnings)}; do what stands below each of them, and look again")
    error.code = "doctor_found_wrong"
    raise AnsweredError(answer, error)


def _whose(data_dir: Path | None, url: str | None) -> tuple[Settings, StackAddresses | None]:
    """The settings to look at, and the stack that they are of."""
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
    from strandline.ingest.mqtt.bridge import MqttBridgeSettings
    from strandline.services.doctor.examination import server_checks
    from strandline.services.doctor.machine import check_machine, check_ports
    from strandline.services.embedded import preflight
    from strandline.services.embedded.addresses import Ports
    from strandline.services.embedded.artifacts import find_java
    from strandline.services.embedded.passwords import check_passwords
    from strandline.services.processes.pids import PidFile

    mqtt: MqttBridgeSettings | None = MqttBridgeSettings.read()
    assert mqtt is not None
    if addresses is not None:
        own: dict[str, Any] = {} if "mqtt" in addresses.outside else {"mqtt_version": "3.1.1"}  # what amqtt speaks
        mqtt = mqtt.model_copy(update={"mqtt_url": addresses.mqtt_url, **own})
    elif "mqtt_url" not in mqtt.model_fields_set:
        mqtt = None
    checks: dict[str, Check] = {**server_checks(settings, mqtt), "machine": partial(check_machine, settings, find_java)}
    if addresses is not None:
        running = PidFile(settings.data_dir).alive()
        parts = [name for name in preflight.PARTS if name not in running and name not in addresses.outside]
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
        lines.append(f"{_SIGNS[one.state]} {escape(f'{one.subject}: {one.sentence}')}")
        if one.remedy:
            lines.append(f"    {escape(one.remedy)}")
    return lines


def _text(lines: list[str]) -> Any:
    from rich.text import Text

    return Text.from_markup("\n".join(lines))
