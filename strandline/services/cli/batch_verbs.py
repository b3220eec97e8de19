"""`strandline batch run`: a pipeline over a range of its streams, or over files, until it has completed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.core.errors import InvalidDocument, Problem, StackError
from strandline.services.cli import display
from strandline.services.cli.document_verbs import join_files
from strandline.services.cli.ingest_verbs import Failure, put_files
from strandline.services.cli.options import AsJson, DataDir, TokenFile, Url, connect
from strandline.services.cli.output import JsonObject, show, waiting

if TYPE_CHECKING:  # reading documents takes long to import, and every command imports this module
    from strandline.core.documents import YamlDocument
    from strandline.services.client import ControlClient

batch_app = typer.Typer(
    help="Batches: pipelines over a bounded range of a stream, or over files.", no_args_is_help=True
)

_TO_START = ("stopped", "failed", "drained")
"""States in which an incomplete batch waits for an order."""


@batch_app.command(
    "run",
    epilog="Example: strandline batch run examples/nab.yaml --start 2026-10-01 --end 2026-11-01",
)
def run_batch(
    file: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, readable=True, help="YAML or SQL file with one pipeline and its stream."
        ),
    ],
    start: Annotated[
        str | None, typer.Option(help="earliest, or a time of arrival. Default: the start in the document.")
    ] = None,
    end: Annotated[
        str | None, typer.Option(help="latest, or a time of arrival. Default: the end in the document, or latest.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the batch. Default: the name in the document. The sinks are those of the document."),
    ] = None,
    records: Annotated[
        list[Path] | None,
        typer.Option(
            "--input", exists=True, dir_okay=False, help="Write this file to the stream first; may be repeated."
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the batch has completed.")] = True,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Compute a pipeline over a range of the log, close all windows, and end.

    After a kill, run the same command again: it continues. After completion, the command adds nothing.
    """
    documents, place = _read(file)
    pipeline = _only_pipeline(documents, file)
    others = [one for one in documents if one is not pipeline]
    batch = as_batch(pipeline.data, start, end, name)
    with connect(data_dir, url, token_file) as client:
        if records:
            _apply(client, others, place, file)
            _put(client, batch, records, data_dir, url)
        with waiting(f"applying {file}"):
            _apply(client, [*others, (batch, pipeline)], place, file)
        job = _run(client, batch["pipeline"], wait=wait)
    show(job, as_json, lambda: [display.job_table(job)])


def as_batch(document: Mapping[str, Any], start: str | None, end: str | None, name: str | None) -> dict[str, Any]:
    """Return the document of a pipeline with this range and name. Without an end, the batch reads the existing records."""
    said = {key: value for key, value in (("start", start), ("end", end)) if value is not None}

    def bounded(read: Any) -> Any:
        return {**read, "end": read.get("end") or "latest", **said} if isinstance(read, Mapping) else read

    batch = {**document, "pipeline": name or document["pipeline"]}
    if "inputs" in batch and isinstance(batch["inputs"], list):
        batch["inputs"] = [bounded(one) for one in batch["inputs"]]
    else:
        batch["input"] = bounded(batch.get("input"))
    return batch


def _read(file: Path) -> tuple[list[YamlDocument], Callable[[Problem], Problem]]:
    from strandline.core.documents import read_documents

    text, place = join_files([file])
    try:
        return read_documents(text, str(file)), place
    except InvalidDocument as error:
        raise InvalidDocument([place(problem) for problem in error.problems]) from error


def _only_pipeline(documents: list[YamlDocument], file: Path) -> YamlDocument:
    pipelines = [one for one in documents if one.kind == "pipeline"]
    if len(pipelines) != 1:
        names = ", ".join(one.name for one in pipelines) or "none"
        raise typer.BadParameter(f"{file} must contain exactly one pipeline; it contains {names}", param_hint="FILE")
    return pipelines[0]


def _apply(
    client: ControlClient,
    documents: Iterable[YamlDocument | tuple[Mapping[str, Any], YamlDocument]],
    place: Callable[[Problem], Problem],
    file: Path,
) -> None:
    """Apply documents, some of them with changed data. Problems keep their lines."""
    from strandline.frontends.document_text import write_documents
    from strandline.frontends.joined_texts import JoinedTexts

    joined = JoinedTexts()
    for one in documents:
        data, read = (one.data, one) if not isinstance(one, tuple) else one

        def placed(problem: Problem, read: YamlDocument = read) -> Problem:
            return place(Problem(problem.message, problem.path, str(file), read.line_of_text(problem.path)))

        joined.add(write_documents([data]).encode(), placed)
    if not joined.text:
        return
    try:
        client.apply(joined.text, str(file))
    except InvalidDocument as error:
        raise InvalidDocument([joined.located(problem) for problem in error.problems]) from error


def _put(
    client: ControlClient, batch: Mapping[str, Any], files: list[Path], data_dir: Path | None, url: str | None
) -> None:
    """Write files to the stream that the batch reads."""
    from strandline.core.streams.stream import StreamSpec

    if "inputs" in batch:
        raise typer.BadParameter(
            "the pipeline reads several streams; write the files to them with strandline ingest STREAM FILE",
            param_hint="--input",
        )
    spec = StreamSpec.from_document(client.stream(batch["input"]["stream"])["document"])
    failures: dict[Path, Failure] = {}
    put_files(spec, files, (data_dir, url), [], failures)
    if failures:
        raise StackError(f"the batch was not started: {'; '.join(one.message for one in failures.values())}")


def _run(client: ControlClient, name: str, *, wait: bool) -> JsonObject:
    """Start the batch if necessary, and wait until it has completed or is stopped."""
    job = client.job(name)
    if job["state"] in _TO_START:
        job = client.order(name, "start")
    if not wait:
        return job
    with waiting(f"batch {name} begins") as report:

        def look(job: JsonObject) -> None:
            message = f" ({job['message']})" if job["message"] else ""
            batch = job["batch"]
            if batch is None:
                report(f"batch {name} is {job['state']}{message}")
            else:
                done, total = batch["records_read"], batch["records_read"] + batch["records_left"]
                report(f"batch {name} is {job['state']}{message}", f", {display.batch_summary(batch)}", done, total)

        return client.wait_for_batch(name, look)
