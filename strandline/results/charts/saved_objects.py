"""Kibana objects that show a job's results: a data view and a Discover search for each alias, and a dashboard. Also for
its dead letters, if they are in an index.

- A data view uses the alias and no pattern. Only the alias shows a window once: after a backfill its filters hide the
  replaced windows. A pattern such as `turbine-*` would count both, and mix minutes with hours.
- Its time field is `window.start`, not `@timestamp`, which is the window's end: then a bar is above the time that it
  represents.
- The time of a dead letter is its log time: many have no readable event time.
- The ids are derived from the names, so a second import replaces the objects of the first one.

Kibana 8.19 accepts objects in older formats and migrates them. Each object here contains the version of its format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from strandline.core.field_types import is_nested, kind_of
from strandline.results.charts.lens import Chart, Column, Field, Operation, count, number, over_time, table
from strandline.results.dead_letters.documents import DEAD_LETTER_FIELDS
from strandline.results.mapping import FIELD_MAPPINGS
from strandline.results.names import dead_letter_index

SavedObject = dict[str, Any]

WINDOW_START = Field("window.start", "date", "window start")
WINDOW_END = Field("window.end", "date", "window end")
EVENT_TIME = Field("@timestamp", "date", "event time")
RECORDS_SIZE_MS = 1_000
"""Time of one point in ms, for documents of records."""
_CORE_VERSION = "8.8.0"
_VERSIONS = {"index-pattern": "8.0.0", "search": "8.0.0", "dashboard": "8.9.0"}
_GRID_COLUMNS = 48
_SERIES_MAX = 10
_ROWS_MAX = 100
_CHARTS_MAX = 4
"""Maximum number of charts for the measures of one alias: the first measures. Discover shows all."""
_REFRESH_MS = 10_000
_WINDOWS_SHOWN = 240
"""Initial time range of the dashboard, as a number of windows of the smallest size."""
_WINDOW_MS = 60_000
"""Size of a window for the time range if there are dead letters but no windows."""


@dataclass(frozen=True)
class Measure:
    """An aggregate of a stage."""

    name: str
    type: str
    combined_by: Operation | None = None
    """Operation that combines the values of successive windows. None if that isn't possible."""


@dataclass(frozen=True)
class ResultView:
    """An alias and the fields of its documents."""

    alias: str
    stage: str
    size_ms: int
    """Size of the windows."""
    every_ms: int
    """Time from one window's start to the next one's."""
    by: tuple[tuple[str, str], ...]
    """(name, type) of each key field."""
    measures: tuple[Measure, ...]
    has_window: bool = True
    """True if its documents describe windows, False if they describe records."""
    overlaps: bool = False
    """True if a record can be in several windows, so that their sums can't be added."""
    windows: str = ""
    """Name of the windows, if it doesn't follow from their size."""
    begin_together: bool = False
    """True if several windows begin at the same time, so that only their ends differ."""

    @property
    def time(self) -> Field:
        """The time field of a document."""
        if self.begin_together:
            return WINDOW_END
        return WINDOW_START if self.has_window else EVENT_TIME

    @property
    def about(self) -> str:
        """Name of the objects that the documents describe."""
        if not self.has_window:
            return "records"
        return self.windows or _size_text(self.size_ms)

    @property
    def id(self) -> str:
        """Id of the data view."""
        return f"strandline-{self.alias}"

    @property
    def keys(self) -> list[Field]:
        """The key fields that can be the series of a chart."""
        return [field for field in (_field(*one) for one in self.by) if field.has_top_values]

    @property
    def numbers(self) -> list[tuple[Measure, Field]]:
        """The measures that can be drawn: arrays and structs can't."""
        fields = ((one, _field(one.name, one.type)) for one in self.measures if not is_nested(one.type))
        return [(one, field) for one, field in fields if field.is_number]


def saved_objects(
    job: str, views: Sequence[ResultView], *, has_dead_letters: bool, links: str = ""
) -> list[SavedObject]:
    """Return all objects for one job, in the order in which Kibana can import them. Empty if none of its results are in
    an index.

    Args: has_dead_letters: True if its dead letters are in an index. links: Address of the REST API for browsers, to
    which documents then link. Empty for no links.
    """
    links = links.rstrip("/")
    objects = [one for view in views for one in (_view_of_results(view, links), _search_of_results(view, links))]
    rows = [row for view in views for row in _rows_of_results(view)]
    if has_dead_letters:
        objects += [_view_of_dead_letters(job, links), _search_of_dead_letters(job)]
        rows += _rows_of_dead_letters(job)
    return [*objects, _dashboard(job, rows, min((view.size_ms for view in views), default=_WINDOW_MS))] if rows else []


@dataclass(frozen=True)
class _Row:
    """Adjacent panels, which together are as wide as the dashboard."""

    name: str
    height: int
    panels: list[tuple[int, Chart]]
    """(width, panel)"""


def as_ndjson(objects: Sequence[SavedObject]) -> str:
    """Return the objects as Kibana's page Saved objects reads them: one per line."""
    return "".join(json.dumps(one, ensure_ascii=False, sort_keys=True) + "\n" for one in objects)


def _field(name: str, type_name: str) -> Field:
    return Field(name, FIELD_MAPPINGS[kind_of(type_name)]["type"], name)


def _saved(kind: str, id_: str, attributes: dict[str, Any], references: Sequence[dict[str, str]]) -> SavedObject:
    return {
        "type": kind,
        "id": id_,
        "coreMigrationVersion": _CORE_VERSION,
        "typeMigrationVersion": _VERSIONS[kind],
        "attributes": attributes,
        "references": list(references),
    }


def _view_of_results(view: ResultView, links: str) -> SavedObject:
    labels = {"window.start": "window start", "window.end": "window end", "@timestamp": "window end (@timestamp)"}
    if not view.has_window:
        labels = {"@timestamp": "event time"}
    formats = {field.name: _NUMBER_FORMATS[field.type] for _, field in view.numbers}
    if links:
        labels["_id"] = "records in the log"
        formats["_id"] = _link(f"{links}/v1/results/{view.alias}/{_VALUE}/records", "offsets")
    return _data_view(view.id, view.alias, f"{view.alias} ({view.about})", view.time, labels, formats)


def _view_of_dead_letters(job: str, links: str) -> SavedObject:
    index = dead_letter_index(job)
    labels = {"@timestamp": "log time of the dead letter", "number": "dead letter", "size": "bytes of the record"}
    formats = {name: {"id": "number", "params": {"pattern": "0"}} for name in ("partition", "offset", "number")}
    formats["size"] = {"id": "bytes", "params": {}}
    if links:
        formats["number"] = _link(f"{links}/v1/jobs/{job}/dead-letters/{_VALUE}", _VALUE)
    return _data_view(_dead_letters_id(job), index, f"{job}: dead letters", _LOG_TIME, labels, formats)


def _data_view(
    id_: str, index: str, name: str, time: Field, labels: dict[str, str], formats: dict[str, Any]
) -> SavedObject:
    attributes = {
        "title": index,
        "name": name,
        "timeFieldName": time.name,
        "allowNoIndex": True,  # before the first document there is no index
        "fields": "[]",
        "fieldAttrs": json.dumps({name: {"customLabel": label} for name, label in labels.items()}),
        "fieldFormatMap": json.dumps(formats),
        "runtimeFieldMap": "{}",
        "sourceFilters": "[]",
    }
    return _saved("index-pattern", id_, attributes, [])


def _link(url: str, label: str) -> dict[str, Any]:
    return {
        "id": "url",
        "params": {"type": "a", "urlTemplate": url, "labelTemplate": label, "openLinkInCurrentTab": False},
    }


_VALUE = "{{value}}"
"""Placeholder of the field's value in a URL."""
_NUMBER_FORMATS: dict[str, dict[str, Any]] = {
    "double": {"id": "number", "params": {"pattern": "0,0.[000]"}},
    "long": {"id": "number", "params": {"pattern": "0,0"}},
    "integer": {"id": "number", "params": {"pattern": "0,0"}},
}


def _search_of_results(view: ResultView, links: str) -> SavedObject:
    columns = [name for name, _ in view.by] + [one.name for one in view.measures] + ["_id"] * bool(links)
    return _search(
        f"{view.id}-results",
        f"{view.alias}: results",
        f"Every result of stage {view.stage}",
        view.id,
        columns,
        view.time,
    )


def _search_of_dead_letters(job: str) -> SavedObject:
    view, columns = (
        _dead_letters_id(job),
        ["reason", "step", "message", "text", "stream", "partition", "offset", "number"],
    )
    about = f"Records and results that job {job} could not use"
    return _search(f"{view}-letters", f"{job}: dead letters", about, view, columns, _LOG_TIME)


def _search(id_: str, title: str, about: str, view: str, columns: list[str], time: Field) -> SavedObject:
    """Return the search for the documents of a data view in Discover, the youngest first."""
    reference = "kibanaSavedObjectMeta.searchSourceJSON.index"
    source = {"query": {"query": "", "language": "kuery"}, "filter": [], "indexRefName": reference}
    attributes = {
        "title": title,
        "description": about,
        "columns": columns,
        "sort": [[time.name, "desc"]],
        "kibanaSavedObjectMeta": {"searchSourceJSON": json.dumps(source)},
    }
    return _saved("search", id_, attributes, [{"type": "index-pattern", "id": view, "name": reference}])


def _dashboard(job: str, rows: Sequence[_Row], window_ms: int) -> SavedObject:
    panels: list[dict[str, Any]] = []
    references: list[dict[str, str]] = []
    y = 0
    for row in rows:
        x = 0
        for width, chart in row.panels:
            panel = f"{row.name}-{len(panels)}"
            panels.append(
                {
                    "type": "lens",
                    "panelIndex": panel,
                    "gridData": {"x": x, "y": y, "w": width, "h": row.height, "i": panel},
                    "title": chart.title,
                    "embeddableConfig": {"attributes": chart.attributes, "enhancements": {}},
                }
            )
            references += [{**one, "name": f"{panel}:{one['name']}"} for one in chart.references]
            x += width
        y += row.height
    meta = {"query": {"query": "", "language": "kuery"}, "filter": []}
    attributes = {
        "title": f"{job}: results",
        "description": f"Made from the pipeline of job {job} by `strandline kibana export {job}`",
        "version": 1,
        "timeRestore": True,
        "timeFrom": f"now-{_WINDOWS_SHOWN * window_ms // 1000}s",
        "timeTo": "now",
        "refreshInterval": {"pause": False, "value": _REFRESH_MS},
        "optionsJSON": json.dumps({"useMargins": True, "syncColors": True, "hidePanelTitles": False}),
        "panelsJSON": json.dumps(panels),
        "kibanaSavedObjectMeta": {"searchSourceJSON": json.dumps(meta)},
    }
    return _saved("dashboard", f"strandline-{job}", attributes, references)


def _rows_of_results(view: ResultView) -> Iterator[_Row]:
    key = view.keys[-1] if view.keys else None
    results = count("results")
    what = f"results of {view.about}" if view.has_window else "records"
    title = f"{view.alias}: {what} by {key.name}" if key else f"{view.alias}: {what}"
    chart = over_time(title, view.id, view.time, key, results, as_bars=True, top=_SERIES_MAX)
    yield _Row(view.alias, 10, [(8, number(f"{view.alias}: results", view.id, results)), (40, chart)])
    drawn = view.numbers[:_CHARTS_MAX]
    charts = [_chart(view, measure, field, key) for measure, field in drawn]
    for first in range(0, len(charts), 2):
        beside = charts[first : first + 2]
        yield _Row(view.alias, 14, [(_GRID_COLUMNS // len(beside), one) for one in beside])
    if view.keys:
        measures: list[Column] = [field.measure(operation_of(measure, view)) for measure, field in drawn]
        title = f"{view.alias}: top {', '.join(field.name for field in view.keys)}"
        top = table(title, view.id, view.keys, [*measures, results], top=_ROWS_MAX)
        yield _Row(view.alias, 14, [(_GRID_COLUMNS, top)])


def _chart(view: ResultView, measure: Measure, field: Field, key: Field | None) -> Chart:
    operation = operation_of(measure, view)
    title = f"{view.alias}: {measure.name} ({operation} of {view.about}{' windows' if view.has_window else ''})"
    column = field.measure(operation)
    return over_time(title, view.id, view.time, key, column, as_bars=operation == "sum", top=_SERIES_MAX)


def _rows_of_dead_letters(job: str) -> Iterator[_Row]:
    view, letters = _dead_letters_id(job), count("dead letters")
    reason, step, message = (_dead_letter_field(name) for name in ("reason", "step", "message"))
    title = "late records and other dead letters by reason"
    chart = over_time(title, view, _LOG_TIME, reason, letters, as_bars=True, top=_SERIES_MAX)
    yield _Row(view, 10, [(8, number("dead letters", view, letters)), (40, chart)])
    yield _Row(
        view, 14, [(_GRID_COLUMNS, table("dead letters: why", view, [reason, step, message], [letters], top=10))]
    )


def _dead_letters_id(job: str) -> str:
    """Return the id of the data view. No alias ends like it."""
    return f"strandline-{dead_letter_index(job)}"


def _dead_letter_field(name: str, label: str = "") -> Field:
    return Field(name, DEAD_LETTER_FIELDS[name]["type"], label or name)


_LOG_TIME = _dead_letter_field("@timestamp", "log time")


def operation_of(measure: Measure, view: ResultView) -> Operation:
    """Return the operation that combines the values of several windows.

    An extreme stays an extreme, sums and counts are added unless the windows overlap, and other values are averaged.
    """
    operation = measure.combined_by or "average"
    return "average" if operation == "sum" and view.overlaps else operation


def _size_text(size_ms: int) -> str:
    return str(timedelta(milliseconds=size_ms))
