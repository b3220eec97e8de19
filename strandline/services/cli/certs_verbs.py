"""The verbs about certificates: `certs dev`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from strandline.services.cli.options import AsJson
from strandline.services.cli.output import print_json

certs_app = typer.Typer(help="Certificates for trying TLS.", no_args_is_help=True)


@certs_app.callback()
def _group() -> None:
    pass


@certs_app.command(epilog="Example: strandline certs dev --directory certs --name gateway.example.org")
def dev(
    directory: Annotated[Path, typer.Option(help="Where the files are put.")] = Path("certs"),
    name: Annotated[
        list[str] | None,
        typer.Option(help="Another host name or address of the servers; may be given more than once."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make an authority of your own, and certificates for servers and a client. An authority that is there stays. Only for
    trying: its key lies beside them."""
    from strandline.services.certificates import NAMES_DEFAULT, make_dev_certificates

    made = make_dev_certificates(directory, (*NAMES_DEFAULT, *(name or ())))
    if as_json:
        print_json({field: str(path) for field, path in asdict(made).items()})
        return
    print(
        f"servers:  STRANDLINE_HTTP_TLS_CERTIFICATE={made.server} STRANDLINE_HTTP_TLS_KEY={made.server_key}\n"
        f"clients:  curl --cacert {made.ca} https://localhost:8081/healthz\n"
        f"          with a certificate of their own: --cert {made.client} --key {made.client_key}\n"
        f"Whoever has {made.ca_key} can make certificates that those who trust {made.ca} believe: use them for trying only."
    )
