"""Commands that trace records: the results of a record, and the records of a result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table
from rich.text import Text

from strandline.core.errors import NotFound
from strandline.processing.formats.timestamps import format_timestamp
from strandline.services.cli.display import table_of
from strandline.services.cli.options import AsJson, DataDir, TokenFile, Url, connect
from strandline.services.cli.output import show

record_app = typer.Typer(help="Records: their results, and the records of a result.", no_args_is_help=True)

_SHOWN_MAX = 200


@record_app.command("show", epilog="Example: strandline record show machines 0 1234")
def show_record(
    stream: Annotated[str, typer.Argument(help="Name of the stream.")],
    partition: Annotated[int, typer.Argument(min=0, help="Partition of the record.")],
    offset: Annotated[int, typer.Argument(min=0, help="Offset of the record.")],
    job: Annotated[str | None, typer.Option(help="Only this job. Default: each job that reads the stream.")] = None,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the life of a record: its fields, the outcome of each step, and each result that contains it."""
    with connect(data_dir, url, token_file) as client:
        jobs = [one["name"] for one in client.get("/v1/jobs")["jobs"] if stream in one["streams"]]
        wanted = [one for one in jobs if job in (None, one)]
        if not wanted:
            which = "no job reads" if job is None else f"job {job} doesn't read"
            raise NotFound(f"{which} stream {stream}; see strandline job list")
        lives = [
            client.get(f"/v1/jobs/{quote(one, safe='')}/records/{quote(stream, safe='')}/{partition}/{offset}")
            for one in wanted
        ]
    show({"lives": lives}, as_json, lambda: [part for life in lives for part in _life(life)])


@record_app.command("list", epilog="Example: strandline record list turbine-minute Ts2AmMBmjfv-zUwKnnTLmg")
def list_records(
    alias: Annotated[str, typer.Argument(help="Name of the alias: the value of `elasticsearch:` in the pipeline.")],
    document: Annotated[str, typer.Argument(metavar="ID", help="Id of the result: the _id of its document.")],
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List the records that a result contains."""
    with connect(data_dir, url, token_file) as client:
        answer = client.get(f"/v1/results/{quote(alias, safe='')}/{quote(document, safe='')}/sources")
    show(answer, as_json, lambda: _sources(answer))


def _life(life: dict[str, Any]) -> Iterator[Table | Text]:
    """Yield the parts of the life of a record in one job."""
    place = f"{life['stream']}, partition {life['partition']}, offset {life['offset']}"
    if life["state"] != "read":
        why = "has not read it yet" if life["state"] == "waiting" else "processes it now"
        yield Text(f"{place}: job {life['job']} {why}")
        return
    late = "no record can be late" if life["late_below_ms"] is None else f"late below {_time(life['late_below_ms'])}"
    facts = [f"job {life['job']}, slice {life['slice']}, version {life['version']}", late]
    facts += [] if life["log_time_ms"] is None else [f"log time {_time(life['log_time_ms'])}"]
    facts += [f"lookup {name} version {version}" for name, version in life["lookups"].items()]
    yield Text(f"{place}\n{'; '.join(facts)}\n{life['value']}")
    yield table_of(
        ("ELEMENT", "EVENT TIME", "STAGE", "STEP", "OUTCOME"),
        (
            (
                "" if row["element"] is None else str(row["element"]),
                _time(row["event_time_ms"]),
                stage,
                step,
                outcome,
            )
            for row in life["rows"]
            for stage, step, outcome in _outcomes(row)
        ),
    )
    yield table_of(
        ("STAGE", "WINDOW", "STATE", "DOCUMENT", "#SLICE", "VALUES"),
        (
            (
                one["stage"],
                ""
                if one["window_end_ms"] is None
                else f"{_time(one['window_start_ms'])} {_time(one['window_end_ms'])}",
                one["state"] if one["replaced_by"] is None else f"replaced by backfill {one['replaced_by']}",
                one["document"],
                "" if one["slice"] is None else str(one["slice"]),
                one["message"] or ", ".join(f"{name} {value}" for name, value in one["values"].items())[:_SHOWN_MAX],
            )
            for one in life["results"]
        ),
    )
    if life["open_until_ms"] is not None:
        yield Text(f"More results can contain it until event time {_time(life['open_until_ms'])}.")


def _outcomes(row: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (stage, step, outcome) of the last step on each path of a row."""
    if not row["paths"]:
        yield "", row["step"], f"{row['outcome']}: {row['message']}"
    for path in row["paths"]:
        last = path["steps"][-1] if path["steps"] else None
        if last is None or last["outcome"] == "kept":
            yield path["stage"], "", "reaches it"
        else:
            message = f": {last['message'] or last['text']}"
            yield path["stage"], last["step"], last["outcome"].replace("_", " ") + message


def _sources(answer: dict[str, Any]) -> list[Table | Text]:
    records = answer["records"]
    caption = (
        f"Result {answer['document']} of stage {answer['stage']} of job {answer['job']} contains "
        f"{answer['record_count']:,} records"
    )
    if len(records) > _SHOWN_MAX:
        caption += f"; the first {_SHOWN_MAX} are shown, and --json shows {len(records):,}"
    rows = ((one["stream"], str(one["partition"]), str(one["offset"])) for one in records[:_SHOWN_MAX])
    return [Text(f"{caption}."), table_of(("STREAM", "#PARTITION", "#OFFSET"), rows)]


def _time(at_ms: int | None) -> str:
    return "" if at_ms is None else format_timestamp(at_ms * 1000)
