"""Command that shows results over time: as lines in the terminal, as a page for a browser, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table
from rich.text import Text

from strandline.core.times.durations import parse_duration_ms
from strandline.services.cli.display import table_of
from strandline.services.cli.options import AsJson, DataDir, TokenFile, Url, check_directory_of, connect, parse_time
from strandline.services.cli.output import show

results_app = typer.Typer()

JsonObject = dict[str, Any]
_BLOCKS = "▁▂▃▄▅▆▇█"
_GAP = " "
_POINTS_IN_TERMINAL = 60
_POINTS_OF_PAGE = 1_000


@results_app.command(epilog="Example: strandline results turbine-minute --value load --html load.html")
def results(
    alias: Annotated[str, typer.Argument(help="Name of the alias: the value of `elasticsearch:` in the pipeline.")],
    value: Annotated[str | None, typer.Option(help="Aggregate to draw. Default: the first numeric one.")] = None,
    by: Annotated[
        str | None, typer.Option(help="Key field with one series per value. Default: the last key field.")
    ] = None,
    from_: Annotated[str | None, typer.Option("--from", help="Only windows that start at or after this time.")] = None,
    to: Annotated[str | None, typer.Option(help="Only windows that start at or before this time.")] = None,
    windows: Annotated[int, typer.Option(min=1, help="Number of newest windows, without --from.")] = 240,
    size: Annotated[
        str | None,
        typer.Option(help="Only windows of this length, such as 5m. Default: that of the current version of the job."),
    ] = None,
    series: Annotated[int, typer.Option(min=1, max=50, help="Maximum number of keys: those with most results.")] = 10,
    records: Annotated[
        str | None, typer.Option(metavar="ID", help="Show the log ranges that contain the records of this result.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained HTML page to this file.")] = None,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Draw the results of an alias over time."""
    check_directory_of(html)
    if records is not None:
        with connect(data_dir, url, token_file) as client:
            origin = client.get(f"/v1/results/{quote(alias, safe='')}/{quote(records, safe='')}/records")
        show(origin, as_json, lambda: [_window_caption(origin), _ranges_table(origin)])
        return
    parameters = {
        "value": value,
        "by": by,
        "from_ms": parse_time(from_, "--from"),
        "to_ms": parse_time(to, "--to"),
        "windows": windows,
        "size_ms": _length_ms(size),
        "series": series,
        "points": _POINTS_OF_PAGE if html or as_json else _POINTS_IN_TERMINAL,
    }
    with connect(data_dir, url, token_file) as client:
        query = {name: one for name, one in parameters.items() if one is not None}
        answer = client.get(f"/v1/results/{quote(alias, safe='')}", **query)
    if html is not None:
        html.write_text(page(answer), encoding="utf-8")
        answer["page"] = str(html)
    show(answer, as_json, lambda: [f"{html} is written"] if html else [_caption(answer), _table(answer)])


def _length_ms(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--size") from error


def page(answer: JsonObject) -> str:
    """Return a page that draws the response of `GET /v1/results/ALIAS`. It loads nothing from other addresses."""
    starts = sorted({at for one in answer["series"] for at, _ in one["points"]})
    if starts:  # a step without a window in any series is a gap
        starts = list(range(starts[0], starts[-1] + 1, answer["step_ms"]))
    columns = [[dict(map(tuple, one["points"])).get(at) for at in starts] for one in answer["series"]]
    data = {
        "title": _title(answer),
        "about": _about(answer),
        "series": [one["key"] for one in answer["series"]],
        "data": [[at / 1000 for at in starts], *columns],
        "counts": _counts(answer),
    }
    # A key can contain any text, also the end of a script.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    parts = files("strandline.services.cli").joinpath("page")
    shown = parts.joinpath("results.html").read_text(encoding="utf-8")
    for mark, name in (("__UPLOT_CSS__", "uPlot.min.css"), ("__UPLOT_JS__", "uPlot.iife.min.js")):
        shown = shown.replace(mark, parts.joinpath(name).read_text(encoding="utf-8"))
    return shown.replace("__DATA__", text)


def _title(answer: JsonObject) -> str:
    return f"{answer['alias']}: {answer['value']}" + (f" by {answer['by']}" if answer["by"] else "")


def _about(answer: JsonObject) -> str:
    if answer["from_ms"] is None:
        return f"Stage {answer['stage']} of job {answer['job']} has no result yet."
    times = f"{_time_text(answer['from_ms'])} to {_time_text(answer['to_ms'] + answer['size_ms'])} UTC"
    each = f"each point a window of {_duration_text(answer['size_ms'])}"
    if answer["step_ms"] > answer["every_ms"]:
        each = f"each point the {answer['operation']} of the windows of {_duration_text(answer['step_ms'])}"
    found = f"{answer['results']} results, {each}.{_other_lengths(answer)}"
    return f"Stage {answer['stage']} of job {answer['job']}, {times}; {found}"


def _other_lengths(answer: JsonObject) -> str:
    """Return a sentence about results with windows of other lengths, which the answer doesn't contain."""
    others = [one for one in answer["lengths"] if one["size_ms"] not in (None, answer["size_ms"])]
    parts = [f"{one['results']} of windows of {_duration_text(one['size_ms'])}" for one in others]
    return f" Other versions have other results: {', '.join(parts)} (--size)." if parts else ""


def _counts(answer: JsonObject) -> list[tuple[str, str]]:
    """Return the counts of the records of the job since its creation."""
    counts = answer["counts"]
    rejected = dict(counts["rejected"])
    late = rejected.pop("late", 0)
    others = [(f"dead letters: {reason}", f"{number:,}") for reason, number in sorted(rejected.items())]
    return [("records", f"{counts['records']:,}"), ("late", f"{late:,}"), *others]


def _caption(answer: JsonObject) -> Text:
    counts = ", ".join(f"{name} {number}" for name, number in _counts(answer))
    return Text(f"{_title(answer)}\n{_about(answer)}\nSince the job began: {counts}.")


def _window_caption(origin: JsonObject) -> Text:
    window = f"{_time_text(origin['window_start_ms'])} to {_time_text(origin['window_end_ms'])} UTC"
    return Text(
        f"{origin['alias']}, result {origin['document']}: stage {origin['stage']} of job {origin['job']}, window {window}\n"
        f"Its records are in slices {origin['slice_first']} to {origin['slice_last']}, with other records of the same time."
    )


def _ranges_table(origin: JsonObject) -> Table:
    names = ("partition", "offset_first", "offset_next")
    return table_of(
        ("STREAM", "#PARTITION", "#OFFSET FIRST", "#OFFSET NEXT"),
        ((one["stream"], *(str(one[name]) for name in names)) for one in origin["ranges"]),
    )


def _table(answer: JsonObject) -> Table:
    rows: list[Sequence[str]] = []
    found = [number for one in answer["series"] for _, number in one["points"]]
    bounds = (min(found), max(found)) if found else (0.0, 0.0)
    for one in answer["series"]:
        numbers = [number for _, number in one["points"]]
        if numbers:
            line = _line(one["points"], answer["from_ms"], answer["to_ms"], answer["step_ms"], bounds)
            least, most, last = (f"{number:,.6g}" for number in (min(numbers), max(numbers), numbers[-1]))
            rows.append((one["key"], least, line, most, last))
    return table_of(((answer["by"] or answer["value"]).upper(), "#LEAST", "OVER TIME", "#MOST", "#LAST"), rows)


def _line(
    points: Sequence[Sequence[float]], from_ms: int, to_ms: int, step_ms: int, bounds: tuple[float, float]
) -> str:
    """Return one character for each step. All lines of a table have the same bounds, so that they can be compared."""
    least, most = bounds
    by_step = {int(at - from_ms) // step_ms: number for at, number in points}
    width = (most - least) or 1.0
    heights = {step: round((number - least) / width * (len(_BLOCKS) - 1)) for step, number in by_step.items()}
    return "".join(
        _BLOCKS[heights[step]] if step in heights else _GAP for step in range((to_ms - from_ms) // step_ms + 1)
    )


def _time_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _duration_text(duration_ms: int) -> str:
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if duration_ms >= unit_ms and duration_ms % (unit_ms // 2) == 0:
            return f"{duration_ms / unit_ms:g} {unit}"
    return f"{duration_ms / 1000:g} s"
