"""Commands that try a pipeline: `pipeline run`, `test`, and `explain` without a server, `preview` with records of a stack."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table
from rich.text import Text

from strandline.core.errors import InvalidDocument, PermanentError
from strandline.services.cli.desk.case_reports import TestsFailed, case_lines, junit_xml, report_json
from strandline.services.cli.desk.desk_display import (
    documents_table,
    graph_tables,
    local_dead_letters_table,
    preview_tables,
)
from strandline.services.cli.document_verbs import StreamFile, join_files, pipeline_app
from strandline.services.cli.options import (
    AsJson,
    DataDir,
    IgnoredDataDir,
    IgnoredUrl,
    TokenFile,
    Url,
    check_directory_of,
    connect,
)
from strandline.services.cli.output import AnsweredError, print_json, print_tables, printable, printable_json, show

# Modules that compute are imported by the commands, so that the other commands are quick.
if TYPE_CHECKING:
    from strandline.processing.desk.desk import Desk, DeskResult, Outcome
    from strandline.processing.pipelines.checked_pipeline import CheckedPipeline

__all__ = ["pipeline_app"]

File = Annotated[
    Path,
    typer.Argument(
        exists=True, dir_okay=False, readable=True, help="YAML or SQL file with the pipeline and its stream."
    ),
]
PipelineName = Annotated[str | None, typer.Option("--pipeline", help="Name of the pipeline, if the file has several.")]
LookupRows = Annotated[
    list[str] | None,
    typer.Option("--lookup", metavar="NAME=FILE", help="Rows of a lookup (.csv, .ndjson, .parquet); may be repeated."),
]
SLICE_RECORDS = 10_000
_ROWS_SHOWN = 500
_LETTERS_SHOWN = 20


@pipeline_app.command(
    "run", epilog="Example: strandline pipeline run examples/nab.yaml --input examples/readings.ndjson"
)
def run_pipeline(
    file: File,
    records: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="FILE|STREAM=FILE",
            help="File of records (.ndjson, .csv, .parquet, .b64, .avro, also .gz and .zst; - is stdin), one for each stream.",
        ),
    ],
    pipeline: PipelineName = None,
    stream: Annotated[str | None, typer.Option(help="Select the pipeline that reads this stream.")] = None,
    stream_file: StreamFile = None,
    lookup: LookupRows = None,
    partitions: Annotated[
        int,
        typer.Option(
            min=1, max=1000, help="Number of partitions of the stream. The key chooses the partition, as in Kafka."
        ),
    ] = 1,
    slice_: Annotated[str, typer.Option("--slice", metavar="N|all", help="Number of records in a slice.")] = str(
        SLICE_RECORDS
    ),
    log_time: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD|now",
            help="Field with the arrival time of a record, or now for the time of the run. Default: its event time.",
        ),
    ] = None,
    no_drain: Annotated[
        bool, typer.Option("--no-drain", help="Leave windows open at the end, and show them like `updates` does.")
    ] = False,
    stage: Annotated[list[str] | None, typer.Option(help="Show only results of this stage; may be repeated.")] = None,
    sort: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD|'FIELD desc'",
            help="Sort the results by this field; may be repeated. Default: the order in which windows close.",
        ),
    ] = None,
    ids: Annotated[
        bool, typer.Option("--ids", help="With --json: print each result as {_index, _id, _source}.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Write the results to this .ndjson or .parquet file.")] = None,
    ignored_data_dir: IgnoredDataDir = None,
    ignored_url: IgnoredUrl = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one result per line on stdout, and one dead letter per line on stderr."),
    ] = False,
) -> None:
    """Run a pipeline over a file of records, without a server.

    The log contains the records in the order of the file. Log time is event time, and the files of several streams are
    merged by it.
    """
    _leave_out_pandas()
    from strandline.processing.desk.desk import Desk, DeskResult, letter_fields
    from strandline.processing.desk.result_files import result_file
    from strandline.processing.desk.sorted_results import ResultOrder

    checked = _read(file, stream_file, pipeline, stream, _row_files(lookup))
    emitting = [one for one in checked.all_stages if one.emits]
    _check_stages(stage or (), checked, {one.name for one in emitting})
    chosen = [one for one in emitting if not stage or one.name in stage]
    is_now = log_time == "now" and all("now" not in one.stream.fields for one in checked.inputs)
    log_field = None if is_now else log_time
    desk = Desk(checked, _slice_records(slice_), log_time=log_field)
    outcomes = _outcomes(
        desk, checked, _files(checked, records), partitions, log_field, drains=not no_drain, are_new=is_now
    )
    if sort:
        outcomes = ResultOrder.of(sort, chosen).sorted(outcomes)
    shown = _Shown()
    with result_file(output, chosen) if output else nullcontext() as kept:
        for one in outcomes:
            if isinstance(one, DeskResult):
                if stage and one.stage not in stage:
                    continue
                if kept is not None:
                    kept.write(one)
                if as_json:
                    print(printable_json(_line(one, ids)))
                    continue
            elif as_json:
                print(printable_json(json.dumps(letter_fields(one), ensure_ascii=False)), file=sys.stderr)
                continue
            shown.keep(one)
    if not as_json:
        shown.print(desk, checked, output)
    for warning in desk.warnings:
        line = printable_json(json.dumps({"warning": warning})) if as_json else printable(f"warning: {warning}")
        print(line, file=sys.stderr)


@pipeline_app.command("test", epilog="Example: strandline pipeline test examples/tests/nab.yaml --junit report.xml")
def run_tests(
    files: Annotated[
        list[Path],
        typer.Argument(
            exists=True,
            dir_okay=False,
            readable=True,
            help="Files of `test:` documents. With --expect: the file of the pipeline.",
        ),
    ],
    records: Annotated[
        Path | None,
        typer.Option("--input", allow_dash=True, dir_okay=False, help="File of records, as for `pipeline run`."),
    ] = None,
    expect: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="File of expected results: NDJSON, JSON, or YAML.")
    ] = None,
    pipeline: PipelineName = None,
    stream_file: StreamFile = None,
    lookup: LookupRows = None,
    partitions: Annotated[int, typer.Option(min=1, max=1000, help="Number of partitions of the stream.")] = 1,
    junit: Annotated[Path | None, typer.Option(help="Write a report in the XML format of JUnit to this file.")] = None,
    ignored_data_dir: IgnoredDataDir = None,
    ignored_url: IgnoredUrl = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline over records, and compare the results with the expected ones. The exit code is 1 if they differ."""
    check_directory_of(junit)
    _leave_out_pandas()
    from strandline.processing.desk.case_run import CaseReport, read_cases, run_case
    from strandline.processing.desk.cases import CaseSpec, CaseStep, Expected

    if stream_file and records is None:
        raise typer.BadParameter(
            "--stream-file is for --input; a file of tests names a file with the pipeline and the stream"
        )
    if lookup and records is None:
        raise typer.BadParameter("--lookup is for --input; a file of tests names the rows itself, in 'lookups'")
    if (records is None) != (expect is None):
        raise typer.BadParameter("pass --input and --expect together; a file of tests needs neither")
    cases: list[tuple[CaseSpec, Path]] = []
    if records is not None and expect is not None:
        if len(files) != 1:
            raise typer.BadParameter("with --input and --expect, pass one file that contains the pipeline")
        steps = [CaseStep(input="-" if str(records) == "-" else str(records.absolute()))]
        expected = Expected(results=str(expect.absolute()), dead_letters="any")
        name = pipeline or "pipeline"
        spec = CaseSpec(
            test=name, file=str(files[0].absolute()), pipeline=pipeline, partitions=partitions, slice=SLICE_RECORDS,
            lookups={of: str(rows.absolute()) for of, rows in _row_files(lookup).items()}, steps=steps, expect=expected,
        )  # fmt: skip
        cases.append((spec, Path()))
    else:
        cases = [(case, file.parent) for file in files for case in read_cases(file)]
    reports: list[CaseReport] = []
    for case, directory in cases:
        reports.append(run_case(case, directory, partial(_read_for_test, stream_file)))
        if not as_json:
            print(printable("\n".join(case_lines(reports[-1]))))
    if junit is not None:
        junit.write_bytes(junit_xml(reports))
    failed = [one.name for one in reports if not one.passed]
    answer = {"tests": [report_json(one) for one in reports], "failed": len(failed)}
    if failed:
        line = f"{len(failed)} of {len(reports)} tests failed: {', '.join(failed)}"
        raise AnsweredError(answer, TestsFailed(f"{line}; correct the pipeline or the expected results"))
    if as_json:
        print_json(answer)


@pipeline_app.command("explain", epilog="Example: strandline pipeline explain examples/turbines.yaml")
def explain_pipeline(
    what: Annotated[
        str, typer.Argument(metavar="FILE|JOB", help="YAML or SQL file, or the name of a job of the stack.")
    ],
    pipeline: PipelineName = None,
    stream_file: StreamFile = None,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the stages of a pipeline, and their state, reach, retention, cost, and the time of their results."""
    if Path(what).is_file():
        from strandline.processing.desk.pipeline_graph import pipeline_graph

        graph = pipeline_graph(_read(Path(what), stream_file, pipeline, None))
    else:
        with connect(data_dir, url, token_file) as client:
            graph = client.get(f"/v1/jobs/{quote(what, safe='')}/graph")
    show(graph, as_json, lambda: graph_tables(graph))


@pipeline_app.command("preview", epilog="Example: strandline pipeline preview examples/nab.yaml --records 500")
def preview_pipeline(
    what: Annotated[
        str, typer.Argument(metavar="FILE|JOB", help="YAML or SQL file, or the name of a job of the stack.")
    ],
    stream: Annotated[str | None, typer.Option(help="Stream to read. Default: the stream of the pipeline.")] = None,
    records: Annotated[int, typer.Option(min=1, max=10_000, help="Number of newest records to read.")] = 1_000,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, max=30, help="Seconds to wait. The preview includes records that arrive in this time."),
    ] = None,
    pipeline: PipelineName = None,
    stream_file: StreamFile = None,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline over the newest records of a stream of the stack. Writes nothing."""
    parameters = {"stream": stream, "records": records, "seconds": seconds}
    query: dict[str, Any] = {name: one for name, one in parameters.items() if one is not None}
    with connect(data_dir, url, token_file) as client:
        if Path(what).is_file():
            query |= {"pipeline": pipeline} if pipeline else {}
            text, name_source = join_files([stream_file, Path(what)])
            try:
                answer = client.preview(text, what, **query)
            except InvalidDocument as error:
                raise InvalidDocument([name_source(problem) for problem in error.problems]) from error
        else:
            answer = client.get(f"/v1/jobs/{quote(what, safe='')}/preview", **query)
    show(answer, as_json, lambda: preview_tables(answer))


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("local runs don't use pandas", name=fullname)


def _leave_out_pandas() -> None:
    """Hide pandas from pyarrow, which imports it with the first list that it converts. The import would take a third of the
    time of a command. Only in the process of the command line."""
    if Path(getattr(sys.modules["__main__"], "__file__", None) or "").name == "strandline":
        sys.meta_path.insert(0, _NoPandas())


def _read(
    file: Path,
    stream_file: Path | None,
    pipeline: str | None,
    stream: str | None,
    rows: dict[str, Path] | None = None,
) -> CheckedPipeline:
    from strandline.processing.desk.desk_pipeline import read_pipeline

    text, name_source = join_files([stream_file, file])
    try:
        return read_pipeline(text, str(file), pipeline, stream, rows)
    except InvalidDocument as error:
        # A problem of a file of rows has the name and lines of this file.
        placed = [name_source(one) if one.source == str(file) else one for one in error.problems]
        raise InvalidDocument(placed) from error


def _row_files(given: list[str] | None) -> dict[str, Path]:
    """Return lookup -> file of its rows, from `--lookup`."""
    files: dict[str, Path] = {}
    for text in given or ():
        name, _, file = text.partition("=")
        if not file or name in files:
            raise typer.BadParameter(f"--lookup: {text!r}; write NAME=FILE, once for each lookup")
        files[name] = Path(file)
    return files


def _read_for_test(
    stream_file: Path | None, file: Path, pipeline: str | None, rows: Mapping[str, Path]
) -> CheckedPipeline:
    try:
        return _read(file, stream_file, pipeline, None, dict(rows))
    except OSError as error:
        raise PermanentError(f"can't read {file}: {error.strerror}") from error


def _check_stages(chosen: Sequence[str], pipeline: CheckedPipeline, emitting: set[str]) -> None:
    """Check that the chosen stages exist and have results."""
    for name in chosen:
        if name not in {one.name for one in pipeline.all_stages}:
            raise typer.BadParameter(f"no stage has the name {name!r}; expected one of: {', '.join(sorted(emitting))}")
        if name not in emitting:
            raise typer.BadParameter(
                f"stage {name!r} emits nothing, so it has no results; add an 'emit' to it, or choose one of: "
                + ", ".join(sorted(emitting))
            )


def _slice_records(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isascii() or not text.isdigit() or not int(text):
        raise typer.BadParameter(f"--slice: {text!r} isn't a number of records; pass a number of at least 1, or all")
    return int(text)


def _files(pipeline: CheckedPipeline, given: list[str]) -> dict[str, Path]:
    """Return stream -> file with its records, from `--input`."""
    streams = list(pipeline.streams)
    files: dict[str, Path] = {}
    for text in given:
        stream, _, file = text.partition("=")
        if stream not in streams or not file:
            stream, file = streams[0], text
            if len(streams) > 1:
                raise typer.BadParameter(
                    f"--input: {text!r} names no stream, but the pipeline reads several; pass {streams[0]}={text}"
                )
        if stream in files:
            raise typer.BadParameter(f"--input: stream {stream} has two files; pass one file for each stream")
        files[stream] = Path(file)
        if file != "-" and files[stream].is_dir():
            raise typer.BadParameter(f"--input: {file} is a directory; pass a file of records")
    return files


def _outcomes(
    desk: Desk,
    pipeline: CheckedPipeline,
    files: dict[str, Path],
    partitions: int,
    log_time: str | None,
    *,
    drains: bool,
    are_new: bool,
) -> Iterator[Outcome]:
    """Yield the outcomes of a run. `are_new`: True if the log time of all records is the time of the run."""
    from strandline.processing.desk.merged_files import merged_files

    now_ms = time.time_ns() // 1_000_000
    for records in merged_files(pipeline, files, partitions, log_time):
        yield from desk.feed(replace(records, log_times_ms=[now_ms] * len(records)) if are_new else records)
    yield from desk.drain() if drains else desk.end_slice()
    yield from desk.open_windows()


def _line(result: DeskResult, ids: bool) -> str:
    source = result.document.source.decode()
    if not ids:
        return source
    head = json.dumps({"_index": result.document.index, "_id": result.document.id}, ensure_ascii=False)
    return f'{head[:-1]}, "_source": {source}}}'


class _Shown:
    """Output for people at the end of a run: the first results of each stage, the first dead letters, and their numbers."""

    def __init__(self) -> None:
        self._results: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._letters: list[dict[str, Any]] = []
        self._letter_count = 0

    def keep(self, one: Outcome) -> None:
        from strandline.processing.desk.desk import DeskResult, letter_fields

        if not isinstance(one, DeskResult):
            self._letter_count += 1
            if len(self._letters) < _LETTERS_SHOWN:
                self._letters.append(letter_fields(one))
        elif len(self._results[one.stage]) < _ROWS_SHOWN:
            self._results[one.stage].append(json.loads(one.document.source))

    def print(self, desk: Desk, pipeline: CheckedPipeline, output: Path | None) -> None:
        shown: list[Table | Text] = []
        for stage in pipeline.all_stages:
            rows, count = self._results[stage.name], desk.counts.results[stage.name]
            if rows and output is None:
                shown.append(Text.assemble((stage.name, "bold"), f": {count:,} results"))
                shown.append(documents_table(rows, list(stage.field_types)))
                if count > len(rows):
                    shown.append(Text(f"and {count - len(rows):,} more; to get all, pass --output FILE or --json"))
        if self._letters:
            shown += [Text("dead letters", style="bold"), local_dead_letters_table(self._letters)]
            if self._letter_count > len(self._letters):
                shown.append(Text(f"and {self._letter_count - len(self._letters):,} more"))
        counts = desk.counts
        rejected = "".join(f", {count:,} {reason}" for reason, count in sorted(counts.rejected.items()))
        results = ", ".join(
            f"{counts.results[stage.name]:,} of {stage.name}" for stage in pipeline.all_stages if stage.emits
        )
        line = f"{counts.records:,} records, {counts.accepted:,} accepted{rejected}; results: {results}"
        shown.append(Text(line + (f"; {output} is written" if output else "")))
        print_tables([*shown, *map(Text, _needed_delays(desk, pipeline))])


def _needed_delays(desk: Desk, pipeline: CheckedPipeline) -> Iterator[str]:
    """Yield the delay of each stream that would have accepted its late rows."""
    from strandline.core.times.durations import format_duration
    from strandline.processing.formats.inference.time_order import delay_for

    for stream, late_by_ms in desk.counts.late_by_ms.items():
        delay_ms = delay_for(pipeline.event_time_rule.of(stream).delay_ms + late_by_ms)
        yield f"late rows of {stream}: with event_time: delay: {format_duration(delay_ms)}, no row of this input is late"
