"""Commands for certificates: `certs dev`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from strandline.services.cli.options import AsJson
from strandline.services.cli.output import print_json

certs_app = typer.Typer(help="Certificates to test TLS.", no_args_is_help=True)


@certs_app.callback()
def _group() -> None:
    pass


@certs_app.command(epilog="Example: strandline certs dev --directory certs --name gateway.example.org")
def dev(
    directory: Annotated[Path, typer.Option(help="Directory of the files.")] = Path("certs"),
    name: Annotated[
        list[str] | None,
        typer.Option(help="Another host name or address of the servers; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a certificate authority, and certificates for servers and a client. An existing authority is kept.

    Use it only for tests: the private key of the authority is in the same directory.
    """
    from strandline.services.certificates import NAMES_DEFAULT, make_dev_certificates

    made = make_dev_certificates(directory, (*NAMES_DEFAULT, *(name or ())))
    if as_json:
        print_json({field: str(path) for field, path in asdict(made).items()})
        return
    print(
        f"servers:\n\n  STRANDLINE_HTTP_TLS_CERTIFICATE={made.server} STRANDLINE_HTTP_TLS_KEY={made.server_key}\n"
        f"\nclients:\n\n  curl --cacert {made.ca} https://localhost:8081/healthz\n"
        f"\nclients with a certificate:\n\n  --cert {made.client} --key {made.client_key}\n\n"
        f"Use these files only for tests: with {made.ca_key}, anyone can create certificates that clients of {made.ca} trust."
    )
