"""The command line: `strandline`. Most commands use the REST API; docs/api.md lists the others.

Exit codes: 0: done; 1: failed, with a message on stderr; 2: wrong use; 3: an audit found differences.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from strandline.core.errors import StrandlineError
from strandline.services.cli.batch_verbs import batch_app
from strandline.services.cli.certs_verbs import certs_app
from strandline.services.cli.dead_letter_verbs import dead_letters_app
from strandline.services.cli.desk.desk_verbs import pipeline_app
from strandline.services.cli.document_verbs import apply_app
from strandline.services.cli.ingest_verbs import ingest_app, spool_app
from strandline.services.cli.job_verbs import audit_app, job_app
from strandline.services.cli.kibana_verbs import kibana_app
from strandline.services.cli.lookups.lookup_verbs import lookup_app
from strandline.services.cli.notice_verbs import notice_app
from strandline.services.cli.options import Wide, trust
from strandline.services.cli.output import AnsweredError, print_error, print_strandline_error, print_wide
from strandline.services.cli.record_verbs import record_app
from strandline.services.cli.result_verbs import results_app
from strandline.services.cli.stack_verbs import stack_app
from strandline.services.cli.stream_verbs import stream_app
from strandline.services.cli.token_verbs import token_app

app = typer.Typer(
    help="Strandline: exactly-once streaming ETL for sensor data.",
    epilog="Exit codes: 0 done; 1 failed; 2 wrong use; 3 an audit found differences.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(stack_app)
app.add_typer(apply_app)
app.add_typer(audit_app)
app.add_typer(ingest_app)
app.add_typer(spool_app, name="spool")
app.add_typer(job_app, name="job")
app.add_typer(batch_app, name="batch")
app.add_typer(stream_app, name="stream")
app.add_typer(lookup_app, name="lookup")
app.add_typer(notice_app, name="notice")
app.add_typer(dead_letters_app, name="dead-letters")
app.add_typer(pipeline_app, name="pipeline")
app.add_typer(record_app, name="record")
app.add_typer(results_app)
app.add_typer(kibana_app, name="kibana")
app.add_typer(token_app, name="token")
app.add_typer(certs_app, name="certs")


def _add_wide(group: typer.Typer) -> None:
    """Add the option `--wide` to each command with `--json`, because these commands print tables."""
    for command in group.registered_commands:
        if command.callback is not None:
            signature = inspect.signature(command.callback, eval_str=True)
            if "as_json" in signature.parameters:
                command.callback = _with_wide(command.callback, signature)
    for subgroup in group.registered_groups:
        if subgroup.typer_instance is not None:
            _add_wide(subgroup.typer_instance)


def _with_wide(run: Callable[..., None], signature: inspect.Signature) -> Callable[..., None]:
    @functools.wraps(run)
    def run_wide(*, wide: bool, **options: Any) -> None:
        print_wide(wide)
        run(**options)

    option = inspect.Parameter("wide", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Wide)
    run_wide.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    return run_wide


_add_wide(app)

_WrongUse: type[typer.BadParameter] = typer.BadParameter.__bases__[0]
"""Exception that typer raises for every wrong use: the base of its only public class for this."""


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"strandline {version('strandline')}")
        raise typer.Exit


@app.callback()
def _take_root_options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    ca: Annotated[
        Path | None,
        typer.Option(
            envvar="STRANDLINE_CA_FILE", help="PEM file with the CA certificates of an https control service."
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            envvar="STRANDLINE_CERTIFICATE_FILE", help="PEM file with your client certificate for the control service."
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(envvar="STRANDLINE_KEY_FILE", help="PEM file with the private key of the client certificate."),
    ] = None,
) -> None:
    trust(ca, certificate, key)


def main() -> None:
    """Run one command and end the process. An error becomes a message on stderr, and with `--json` also an object on stdout.

    If the reader of stdout has closed it, the exit code is 1, and no message is printed.
    """
    try:
        try:
            _run_verb()
        finally:
            sys.stdout.flush()  # so that a closed stdout raises here, and not when the interpreter exits
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has enough, as in `| head`
        sys.exit(1)


def _run_verb() -> NoReturn:
    as_json = (
        "--json" in sys.argv[1:]
    )  # read before the arguments are parsed, so that wrong use is reported in this form, too
    try:
        # typer itself prints wrong use for people, and exits with 2
        sys.exit(app(prog_name="strandline", standalone_mode=not as_json))
    except AnsweredError as failed:
        print_strandline_error(failed.error, as_json, failed.answer)
        sys.exit(failed.exit_code)
    except StrandlineError as error:
        print_strandline_error(error, as_json)
        sys.exit(1)
    except BrokenPipeError:
        raise
    except OSError as error:
        print_error("os_error", _summary(error), as_json)
        sys.exit(1)
    except _WrongUse as error:
        print_error("wrong_use", error.format_message(), as_json)
        sys.exit(2)


def _summary(error: OSError) -> str:
    """Return the message for an error of the operating system, with the file."""
    if error.filename is None:
        return f"the operating system refused this: {error.strerror or error}"
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else error.filename
    return (
        f"can't open {name}: {error.strerror}; check that the file exists and that you can read and write it, "
        "or pass another file"
    )


if __name__ == "__main__":
    main()
