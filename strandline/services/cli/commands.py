"""The command line: `strandline`. Everything but `up` and `down` goes through the REST API.

Exit codes: 0 done; 1 failed, with a sentence on stderr that says what, why and what to do; 2 wrong use.
"""

from __future__ import annotations

import os
import sys

import typer

from strandline.core.errors import StrandlineError
from strandline.services.cli.document_verbs import apply_app, pipeline_app
from strandline.services.cli.job_verbs import audit_app, job_app
from strandline.services.cli.stack_verbs import stack_app
from strandline.services.cli.stream_verbs import dead_letters_app, stream_app

app = typer.Typer(
    help="Streaming ETL for sensor feeds that can't be asked to send again.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(stack_app)
app.add_typer(apply_app)
app.add_typer(audit_app)
app.add_typer(job_app, name="job")
app.add_typer(stream_app, name="stream")
app.add_typer(dead_letters_app, name="dead-letters")
app.add_typer(pipeline_app, name="pipeline")


def main() -> None:
    """The door: our own errors become a sentence on stderr and exit code 1."""
    try:
        app(prog_name="strandline")
    except StrandlineError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough, as in `| head`
        sys.exit(1)


if __name__ == "__main__":
    main()
