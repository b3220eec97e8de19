"""Commands that read documents: `apply` and `pipeline check`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from strandline.core.errors import Conflict, InvalidDocument, Problem, StackError
from strandline.frontends.joined_texts import JoinedTexts
from strandline.services.cli import display
from strandline.services.cli.options import AsJson, DataDir, IgnoredDataDir, IgnoredUrl, TokenFile, Url, connect
from strandline.services.cli.output import AnsweredError, JsonObject, print_json, show, waiting

apply_app = typer.Typer()
pipeline_app = typer.Typer(help="Pipelines: check, test, and explain them before they run.", no_args_is_help=True)


class Form(StrEnum):
    """Output format of documents."""

    YAML = "yaml"
    SQL = "sql"
    PYTHON = "python"


File = Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True)]
StreamFile = Annotated[
    Path | None,
    typer.Option("--stream-file", exists=True, dir_okay=False, help="File with the document of the stream."),
]


@apply_app.command(epilog="Example: strandline apply examples/nab.yaml")
def apply(
    files: Annotated[
        list[Path],
        typer.Argument(
            exists=True, dir_okay=False, readable=True, help="Files of documents in YAML, or in SQL (.sql)."
        ),
    ],
    plan: Annotated[bool, typer.Option("--plan", help="Show the changes and their cost, and change nothing.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Register streams and submit pipelines, all or none. A new job starts; an existing job gets a new version."""
    text, name_source = join_files(files)
    with connect(data_dir, url, token_file) as client, waiting(f"applying {', '.join(map(str, files))}"):
        try:
            if plan:
                planned = client.plan(text, str(files[0]))
            else:
                applied = client.apply(text, str(files[0]))
        except InvalidDocument as error:
            raise InvalidDocument([name_source(problem) for problem in error.problems]) from error
    if plan:
        _show_plan(planned, as_json)
    else:
        show({"applied": applied}, as_json, lambda: display.applied_lines(applied))


def _show_plan(plan: JsonObject, as_json: bool) -> None:
    changes = [change for one in [*plan["documents"], *plan["jobs"]] for change in one["changes"]]
    forbidden = sum(change["effect"] == "forbidden" for change in changes)
    if not (forbidden and as_json):  # as JSON, the plan and the error are one object
        show(plan, as_json, lambda: display.plan_tables(plan))
    if forbidden:
        refused = f"apply would refuse these documents ({forbidden} forbidden) and change nothing"
        raise AnsweredError(plan, Conflict(f"{refused}; correct each part marked 'forbidden' as its message says"))


@pipeline_app.command("check", epilog="Example: strandline pipeline check examples/nab.yaml")
def check_pipeline(
    file: File,
    stream_file: StreamFile = None,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Check a pipeline and change nothing. Needs no stack if the files contain the stream."""
    from strandline.services.client import ControlUnavailable
    from strandline.services.jobs.checking import absent, check_without_stack, refusal, wrong_without_stack
    from strandline.services.rest.views import check_view

    text, name_source = join_files([stream_file, file])
    checked = check_without_stack(text, str(file))
    if checked is not None:
        answer = check_view(checked).model_dump()
    else:
        try:
            with connect(data_dir, url, token_file) as client:
                answer = client.check(text, str(file))
        except (ControlUnavailable, StackError) as error:
            wrong = wrong_without_stack(text, str(file))
            if not wrong:
                lacking = absent(text, str(file))[0].message
                raise type(error)(f"{file} contains {lacking}; a stack can have it, but {error}") from error
            answer = check_view(refusal(InvalidDocument(wrong))).model_dump()
    problems = [
        name_source(Problem(one["detail"], one["pointer"], one["source"], one["line"])) for one in answer["problems"]
    ]
    for shown, problem in zip(answer["problems"], problems, strict=True):
        shown.update(source=problem.source, line=problem.line)
    if problems:
        raise AnsweredError(answer, InvalidDocument(problems))
    show(answer, as_json, lambda: [display.stages_table(answer["stages"])])


@pipeline_app.command("show", epilog="Example: strandline pipeline show examples/nab.yaml --as sql")
def show_documents(
    file: File,
    form: Annotated[Form, typer.Option("--as", help="Output format.")] = Form.YAML,
    ignored_data_dir: IgnoredDataDir = None,
    ignored_url: IgnoredUrl = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the canonical documents as JSON, with all defaults.")
    ] = False,
) -> None:
    """Show the documents of a YAML or SQL file as YAML, SQL, or Python. Needs no stack."""
    from strandline.core.documents import read_documents
    from strandline.core.streams.stream import StreamSpec
    from strandline.frontends.document_text import write_documents
    from strandline.frontends.python.printer import as_python
    from strandline.frontends.sql.printer import as_sql
    from strandline.processing.pipelines.model.pipeline import PipelineSpec

    models: dict[str, type[StreamSpec | PipelineSpec]] = {"stream": StreamSpec, "pipeline": PipelineSpec}
    text, name_source = join_files([file])
    try:
        documents = read_documents(text, str(file))
        canonical = [models[one.kind].parse(one).as_document() if one.kind in models else one.data for one in documents]
    except InvalidDocument as error:
        raise InvalidDocument([name_source(problem) for problem in error.problems]) from error
    if as_json:
        print_json({"documents": canonical})
        return
    writers = {Form.YAML: write_documents, Form.SQL: as_sql, Form.PYTHON: as_python}
    print(writers[form]([document.data for document in documents]), end="")


def join_files(files: Sequence[Path | None]) -> tuple[bytes, Callable[[Problem], Problem]]:
    """Join the files into one text, so that they are checked together. Files that they name are included.

    Also return a function that adds file and line to a problem. Files of SQL become YAML documents.
    Args: files: None is an option without a value.
    """
    joined = JoinedTexts()
    for file in files:
        if file is not None:
            joined.add_file(file)
    return joined.text, joined.located
