"""Commands for Kibana: data views, searches, and a dashboard for the results of a job, made from its pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from strandline.core.errors import InvalidDocument, Problem
from strandline.services.cli.document_verbs import join_files
from strandline.services.cli.options import AsJson, DataDir, TokenFile, Url, connect
from strandline.services.cli.output import print_json, waiting

kibana_app = typer.Typer(help="Results in Kibana: data views and a dashboard for each job.", no_args_is_help=True)

JobOrFile = Annotated[str, typer.Argument(help="Name of a job, or a YAML file with a pipeline and its stream.")]
KibanaUrl = Annotated[str, typer.Option("--kibana", envvar="STRANDLINE_KIBANA_URL", help="Address of Kibana.")]

Links = Annotated[
    str,
    typer.Option(metavar="URL", help="Address of the REST API for browsers. Documents link to their records there."),
]


@kibana_app.command("export", epilog="Example: strandline kibana export turbine-health")
def export_objects(
    job: JobOrFile,
    links: Links = "",
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the saved objects, one per line, in the import format of Kibana."""
    from strandline.results.charts.saved_objects import as_ndjson

    objects = _objects(job, links, data_dir, url, token_file)
    if as_json:
        print_json({"objects": objects})
    else:
        print(as_ndjson(objects), end="")


@kibana_app.command("import", epilog="Example: strandline kibana import turbine-health --kibana http://127.0.0.1:5601")
def import_into_kibana(
    job: JobOrFile,
    kibana: KibanaUrl = "http://127.0.0.1:5601",
    space: Annotated[str, typer.Option(help="Id of a space in Kibana. Default: the default space.")] = "",
    links: Links = "",
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Import the saved objects into Kibana. They replace the objects of an earlier import."""
    from strandline.results.charts.kibana_client import import_objects, space_url

    objects = _objects(job, links, data_dir, url, token_file)
    with waiting(f"importing {len(objects)} objects into {kibana}"):
        taken = import_objects(kibana, objects, space=space)
    base = space_url(kibana, space)
    dashboards = [f"{base}/app/dashboards#/view/{one['id']}" for one in objects if one["type"] == "dashboard"]
    if as_json:
        print_json({"objects": taken, "dashboards": dashboards})
    else:
        print("\n".join([f"Kibana has {taken} objects", *dashboards]))


def _objects(
    job: str, links: str, data_dir: Path | None, url: str | None, token_file: Path | None
) -> list[dict[str, Any]]:
    if Path(job).is_file():
        return _objects_of_file(Path(job), links)
    with connect(data_dir, url, token_file) as client:
        found: list[dict[str, Any]] = client.get(f"/v1/jobs/{quote(job, safe='')}/kibana", links=links)["objects"]
        return found


def _objects_of_file(file: Path, links: str) -> list[dict[str, Any]]:
    from strandline.services.jobs.apply_documents import check_documents
    from strandline.services.jobs.result_views import kibana_objects

    text, name_source = join_files([file])
    try:
        pipelines = check_documents(text, str(file), {}).pipelines
    except InvalidDocument as error:
        raise InvalidDocument([name_source(problem) for problem in error.problems]) from error
    if not pipelines:
        raise InvalidDocument(
            [Problem("the file contains no pipeline; pass a file with a `pipeline:` document", "", str(file), None)]
        )
    return [one for pipeline in pipelines for one in kibana_objects(pipeline, links)]
