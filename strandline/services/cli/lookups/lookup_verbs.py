"""Commands for lookups. `strandline apply` registers and changes them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from strandline.services.cli import display
from strandline.services.cli.options import AsJson, DataDir, TokenFile, Url, connect
from strandline.services.cli.output import show

lookup_app = typer.Typer(help="Lookups: tables that enrich records by key.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Name of the lookup.")]


@lookup_app.command("list", epilog="Example: strandline lookup list")
def list_lookups(
    data_dir: DataDir = None, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """List all lookups."""
    with connect(data_dir, url, token_file) as client:
        answer = client.get("/v1/lookups")
    show(answer, as_json, lambda: [display.lookups_table(answer["lookups"])])


@lookup_app.command("show", epilog="Example: strandline lookup show sites")
def show_lookup(
    name: Name, data_dir: DataDir = None, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """Show the fields, the key, the versions, and the jobs of a lookup."""
    with connect(data_dir, url, token_file) as client:
        answer = client.lookup(name)
    show(answer, as_json, lambda: display.lookup_tables(answer))


@lookup_app.command("delete", epilog="Example: strandline lookup delete sites")
def delete_lookup(
    name: Name, data_dir: DataDir = None, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """Delete a lookup that no job needs."""
    with connect(data_dir, url, token_file) as client:
        answer = client.delete_lookup(name)
    show(answer, as_json, lambda: [Text(f"lookup {name} is deleted")])
