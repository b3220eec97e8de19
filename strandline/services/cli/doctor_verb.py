"""The verb that looks at everything a deployment stands on: `doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from strandline.services.cli.options import AsJson, DataDir, Url, connect
from strandline.services.cli.output import show, waiting

if TYPE_CHECKING:  # only this verb needs the servers' clients
    from strandline.core.settings import Settings
    from strandline.services.doctor.finding import Check, Finding
    from strandline.services.embedded.addresses import StackAddresses

doctor_app = typer.Typer()

_SIGNS = {"ok": "[green]✓[/]", "warning": "[yellow]![/]", "wrong": "[red]✗[/]"}


@doctor_app.command(epilog="Example: strandline doctor --data-dir /tmp/stack")
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
    show(answer, as_json, lambda: [_text(found, _summary(wrong, warnings))])
    if wrong:
        raise typer.Exit(1)


def _whose(data_dir: Path | None, url: str | None) -> tuple[Settings, StackAddresses | None]:
    """The settings to look at, and the stack that they are of."""
    from strandline.core.settings import Settings
    from strandline.services.embedded.addresses import STACK_FILE, read_stack, stack_settings
    from strandline.services.embedded.outside_servers import take_over

    directory = data_dir or Settings.read().data_dir
    if data_dir is None and (url or not (directory / STACK_FILE).exists()):
        return Settings.read(), None
    addresses = read_stack(directory)
    take_over(addresses.outside_servers())
    return stack_settings(Settings.read(), addresses), addresses


def _checks(settings: Settings, addresses: StackAddresses | None, url: str | None) -> Mapping[str, Check]:
    from strandline.ingest.mqtt.bridge import MqttBridgeSettings
    from strandline.services.doctor.examination import server_checks
    from strandline.services.doctor.machine import check_machine, check_ports
    from strandline.services.embedded import preflight
    from strandline.services.embedded.addresses import Ports
    from strandline.services.embedded.artifacts import find_java
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


def _text(found: list[Finding], summary: str) -> Any:
    from rich.markup import escape
    from rich.text import Text

    lines = []
    for one in found:
        lines.append(f"{_SIGNS[one.state]} {escape(f'{one.subject}: {one.sentence}')}")
        if one.remedy:
            lines.append(f"    {escape(one.remedy)}")
    return Text.from_markup("\n".join([*lines, summary]))
