"""The verbs that start and stop an embedded stack: `up`, `down` and `example`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from strandline.services.cli.options import AsJson, DataDir
from strandline.services.cli.output import print_json, progress_console

# The servers are imported by the verbs that start them, so that `job status` is quick.

stack_app = typer.Typer()


@stack_app.command(epilog="Example: strandline up --detach --data-dir /tmp/stack --port-offset 100")
def up(
    data_dir: DataDir = None,
    port_offset: Annotated[int, typer.Option(help="Added to every port.")] = 0,
    detach: Annotated[bool, typer.Option("--detach", help="Return when all is ready, and leave it running.")] = False,
    kafka: Annotated[str | None, typer.Option(help="Use this Kafka, HOST:PORT[,...], and embed none.")] = None,
    elasticsearch: Annotated[str | None, typer.Option(help="Use the Elasticsearch at this URL.")] = None,
    mqtt: Annotated[str | None, typer.Option(help="Take records from the MQTT broker at this URL.")] = None,
    ledger: Annotated[str | None, typer.Option(help="Keep the ledger at this SQLAlchemy URL.")] = None,
    as_json: AsJson = False,
) -> None:
    """Start the embedded stack, or what is missing of it: Kafka, Elasticsearch, MQTT broker, control service, gateways. Ctrl-C
    stops it. Servers of yours take the place of its own; `embedded` for an address takes its own again."""
    from strandline.core.settings import Settings
    from strandline.services.embedded import stack
    from strandline.services.embedded.outside_servers import choose_outside, take_over

    directory = data_dir or Settings.read().data_dir
    given = {"kafka": kafka, "elasticsearch": elasticsearch, "mqtt": mqtt, "ledger": ledger}
    outside = choose_outside(given, directory, port_offset)
    take_over(outside)
    console = progress_console(as_json)
    started = stack.up(Settings.read(), directory, port_offset, detach, console, outside)
    if as_json:
        print_json(asdict(started.addresses))
    if detach:
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
