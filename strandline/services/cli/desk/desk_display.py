"""Display of local runs: results, dead letters, the graph of a pipeline. Pure: nothing is printed here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from strandline.core.times.durations import format_duration, format_retention
from strandline.services.cli.display import JsonObject, facts_table, or_dash, table_of

_PLACE = ("stream", "partition", "offset", "element", "index", "document")
_NO_FIELDS = ("@timestamp", "event_time", "window", "window_start", "window_end", "strandline")


def documents_table(documents: list[JsonObject], fields: Sequence[str]) -> Table:
    """Return results of one stage, one per line, each with its window, or with the time and position of its record."""
    is_of_windows = all("window" in document for document in documents)
    head = ("WINDOW START", "WINDOW END") if is_of_windows else ("EVENT TIME", "PARTITION/OFFSET")
    return table_of(
        (*head, *(f"#{name}" for name in fields)),
        (
            (
                *(_window(document) if is_of_windows else _record_place(document)),
                *(_cell(document.get(name)) for name in fields),
            )
            for document in documents
        ),
    )


def _window(document: JsonObject) -> tuple[str, str]:
    return _time(document["window"]["start"]), _time(document["window"]["end"])


def _record_place(document: JsonObject) -> tuple[str, str]:
    origin = document["strandline"]
    place = (origin[name] for name in ("partition", "offset", "element") if name in origin)
    return _time(document["@timestamp"]), "/".join(map(str, place))


def _time(text: str) -> str:
    return text.replace("T", " ").replace(".000Z", "Z")


def _cell(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else or_dash(value)


def local_dead_letters_table(letters: list[JsonObject]) -> Table:
    """Return dead letters of a local run, one per line."""
    return table_of(
        ("WHERE", "REASON", "STEP", "MESSAGE", "VALUE"),
        (
            (
                "/".join(str(one[name]) for name in _PLACE if name in one),
                one["reason"],
                one["step"],
                one["message"],
                or_dash(one["value"]),
            )
            for one in letters
        ),
    )


def preview_tables(answer: JsonObject) -> list[Table | Text]:
    """Return the tables of a preview: results of each stage, dead letters, and their numbers."""
    stages: dict[str, list[JsonObject]] = defaultdict(list)
    for one in answer["results"]:
        stages[one["strandline"]["stage"]].append(one)
    shown: list[Table | Text] = []
    for stage, documents in stages.items():
        shown += [Text(f"{stage}: {answer['result_counts'][stage]:,} results", style="bold")]
        shown += [documents_table(documents, [name for name in documents[0] if name not in _NO_FIELDS])]
    if answer["dead_letters"]:
        shown += [Text("dead letters", style="bold"), local_dead_letters_table(answer["dead_letters"])]
    rejected = "".join(f", {count:,} {reason}" for reason, count in sorted(answer["rejected"].items()))
    line = f"{answer['records']:,} records of {answer['stream']}, {answer['accepted']:,} accepted{rejected}"
    if answer["is_cut"]:
        line += "; the stream contains more, so the first windows are incomplete"
    return [*shown, Text(f"{line}; nothing was written")]


def _input_facts(read: JsonObject) -> Iterator[tuple[str, str]]:
    event_time = read["event_time"]
    idle = event_time["idle_timeout_ms"]
    yield "reads", f"stream {read['stream']}, {read['partitions']} partitions, {read['format']}"
    if read["end"] is not None:
        yield (
            "range",
            f"from {read['start']} to {read['end']}, by log time; then all windows close, and the job has completed",
        )
    yield "columns read", f"{len(read['columns_read'])} of {read['columns']}: {', '.join(read['columns_read'])}"
    yield "event time", f"{event_time['source']}, delay {format_duration(event_time['delay_ms'])}"
    yield "watermark", f"{event_time['watermark']}, idle after {'no time' if idle is None else format_duration(idle)}"


def _within(dedupe: JsonObject) -> str:
    if dedupe["within_ms"] is None:
        return ", distinct; remembers every record of the range"
    within, remembers = (format_duration(dedupe[one]) for one in ("within_ms", "remembers_ms"))
    return f" within {within}; remembers records of {remembers}"


def graph_tables(graph: JsonObject) -> list[Table | Text]:
    """Return the stages of a pipeline with their steps and state, then the facts about the whole pipeline."""
    exchange, retention = graph["exchange"], graph["retention"]
    inputs = graph["inputs"]
    spread = " and ".join(", ".join(branch["by"]) or "no field" for branch in graph["branches"]) or "no field"
    kept = {read["stream"]: read["retention_ms"] for read in inputs}
    facts = [
        ("pipeline", graph["pipeline"]),
        *(fact for read in inputs for fact in _input_facts(read)),
        ("exchange", f"by {spread}, {exchange['exchanges']} times; buckets: {exchange['buckets']}"),
        ("reach", format_duration(graph["reach_ms"])),
        ("retention", f"needs {format_duration(retention['needed_ms'])}{_of_each_stream(kept)}"),
    ]
    if (dedupe := graph["dedupe"]) is not None:
        facts.append(
            (
                "dedupe",
                f"by {', '.join(dedupe['by'])}{_within(dedupe)}, {dedupe['bytes_a_record']} bytes each"
                + (f", {dedupe['times_kept']} times" if dedupe["times_kept"] > 1 else ""),
            )
        )
    if graph["time_zone_rules"]:
        facts.append(("time zones", f"tz database {graph['time_zone_rules']}"))
    tables: list[Table | Text] = [facts_table(facts)]
    stages = [*graph["record_stages"], *graph["stages"]]
    in_a_row = [inputs[0]["stream"], *(stage["name"] for stage in stages)]
    source = _no_source if [stage["from"] for stage in stages] == in_a_row[:-1] else _source
    if graph["record_stages"]:
        tables.append(_record_stages_table(graph["record_stages"], source))
    if not graph["stages"]:
        return [*tables, *(Text(f"hint: {hint}") for hint in graph["hints"])]
    steps = table_of(
        ("STAGE", *source("FROM"), "STEPS BEFORE", "WINDOWS", "BY", "AGGREGATES", "STEPS BEHIND", "EMITS"),
        (
            (
                stage["name"],
                *source(stage["from"]),
                _steps(stage["steps_before"]),
                stage["windows"],
                ", ".join(stage["by"]) or "-",
                ", ".join(stage["aggregates"]),
                _steps(stage["steps_after"]),
                ", ".join(stage["emits"]) or "-",
            )
            for stage in graph["stages"]
        ),
    )
    state = table_of(
        ("STAGE", "#BYTES A KEY", "KEEPS FOR A KEY", "RESULTS COME WHEN EVENT TIME IS"),
        (
            (
                stage["name"],
                f"{stage['state']['bytes_a_key']:,}",
                stage["state"]["keeps"],
                f"{format_duration(stage['results_after_ms'])} past the window's end",
            )
            for stage in graph["stages"]
            if stage["join"] is None
        ),
    )
    tables += [steps, *_joins(graph["stages"])]
    if any(stage["join"] is None for stage in graph["stages"]):
        tables.append(state)
    return [*tables, *(Text(f"hint: {hint}") for hint in graph["hints"])]


def _joins(stages: Sequence[JsonObject]) -> list[Table]:
    """Return the table of the rows that each join keeps. Empty if there is no join."""
    joins = [(stage, join) for stage in stages if (join := stage["join"]) is not None]
    if not joins:
        return []
    headings = ("JOIN", "TYPE", "LEFT", "HELD", "RIGHT", "HELD", "FIELDS", "#ROWS A KEY", "#BYTES A ROW")
    return [
        table_of(
            headings,
            (
                (
                    stage["name"],
                    join["type"],
                    _side(join, "left"),
                    format_duration(join["left_is_held_ms"]),
                    _side(join, "right"),
                    format_duration(join["right_is_held_ms"]),
                    ", ".join(join["add"]) or "-",
                    "1 of the right" if join["latest"] else f"{join['max_rows']:,} of each",
                    f"{stage['state']['bytes_a_row']:,}",
                )
                for stage, join in joins
            ),
        )
    ]


def _side(join: JsonObject, side: str) -> str:
    """Return the name of a side of a join, and its streams if they have other names."""
    name, streams = join[side], join[f"{side}_streams"]
    return str(name) if streams in ([name], []) else f"{name} ({', '.join(streams)})"


def _source(shown: str) -> list[str]:
    """If the stages aren't a single sequence, name the input of each stage."""
    return [shown]


def _no_source(_: str) -> list[str]:
    return []


def _record_stages_table(stages: list[JsonObject], source: Callable[[str], list[str]]) -> Table:
    """Return the emissions of records, one per line."""
    return table_of(
        ("STAGE", *source("FROM"), "STEPS BEFORE", "EACH RECORD'S", "EMITS", "RESULTS COME"),
        (
            (
                stage["name"],
                *source(stage["from"]),
                _steps(stage["steps_before"]),
                ", ".join(stage["fields"]),
                ", ".join(stage["emits"]),
                "with the record's slice",
            )
            for stage in stages
        ),
    )


def _steps(steps: list[str]) -> str:
    return "; ".join(steps).replace("`", "") or "-"


def _of_each_stream(kept_ms: Mapping[str, Any]) -> str:
    """Return the retention of the streams, with their names if there are several."""
    if len(kept_ms) == 1:
        return f", has {_kept(*kept_ms.values())}"
    return f"; {', '.join(f'{stream} has {_kept(one)}' for stream, one in kept_ms.items())}"


def _kept(retention_ms: Any) -> str:
    return "all" if retention_ms is None else format_retention(retention_ms)
