"""Commands for streams."""

from __future__ import annotations

from typing import Annotated, Any

import typer
import yaml
from rich.text import Text

from strandline.core.document_values import check_name
from strandline.services.cli import display
from strandline.services.cli.options import AsJson, DataDir, TokenFile, Url, connect
from strandline.services.cli.output import print_json, printable, show

stream_app = typer.Typer(help="Streams: their registration, and their records in the log.", no_args_is_help=True)


@stream_app.command("list", epilog="Example: strandline stream list")
def list_streams(
    data_dir: DataDir = None, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """List all streams."""
    with connect(data_dir, url, token_file) as client:
        answer = client.get("/v1/streams")
    show(answer, as_json, lambda: [display.streams_table(answer["streams"])])


@stream_app.command("show", epilog="Example: strandline stream show machines")
def show_stream(
    name: Annotated[str, typer.Argument(help="Name of the stream.")],
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the fields, partitions, offsets, and retention of a stream, and undeclared fields of its newest records."""
    with connect(data_dir, url, token_file) as client:
        answer = client.stream(name) | {"undeclared": client.undeclared(name)}
    show(answer, as_json, lambda: display.stream_tables(answer))


@stream_app.command("delete", epilog="Example: strandline stream delete machines")
def delete_stream(
    name: Annotated[str, typer.Argument(help="Name of the stream.")],
    keep_topic: Annotated[bool, typer.Option("--keep-topic", help="Keep the topic and its records in Kafka.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete a stream and all its records. No job may read it or emit to it."""
    with connect(data_dir, url, token_file) as client:
        answer = client.delete_stream(name, keep_topic=keep_topic)
    show(answer, as_json, lambda: [Text(f"stream {name} is deleted; its topic is {answer['topic']}")])


@stream_app.command("infer", epilog="Example: strandline stream infer --sample examples/readings.ndjson")
def infer(
    sample: Annotated[
        typer.FileBinaryRead | None,
        typer.Option(help="File with sample records, as devices send them; - is stdin.", lazy=True),
    ] = None,
    from_topic: Annotated[
        str | None, typer.Option(help="Kafka topic whose newest records are the sample, instead of a file.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the stream, if the sample is a file.")] = "readings",
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Propose the document of a stream from sample records: format, fields, types, units."""
    if (sample is None) == (from_topic is None):
        raise typer.BadParameter("pass either --sample or --from-topic", param_hint="--sample / --from-topic")
    if from_topic is not None:
        with connect(data_dir, url, token_file) as client:
            proposal = client.proposal(from_topic)
    else:
        assert sample is not None
        proposal = _of_file(name, sample.read())
    if as_json:
        print_json(proposal)
        return
    print(_yaml(proposal["document"]), end="")
    print(f"# {proposal['records']} records of the sample result in {proposal['accepted']} rows.")
    for line in [*proposal["notes"], *(f"rejected: {why}" for why in proposal["rejected"])]:
        print(printable(f"# {line}"))


def _yaml(document: dict[str, Any]) -> str:
    """Return the document. Non-ASCII letters are unescaped, unless a terminal would execute one of them."""
    texts = (
        yaml.safe_dump(document, sort_keys=False, default_flow_style=None, allow_unicode=unicode)
        for unicode in (True, False)
    )
    return next(text for text in texts if printable(text) == text)


def _of_file(name: str, sample: bytes) -> dict[str, Any]:
    from strandline.processing.formats.proposals import infer_stream

    try:
        check_name(name)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--name") from error
    return vars(infer_stream(name, sample))
