"""What Kibana needs to show a job's results: a data view and a search in Discover for each alias, and a dashboard.

- A data view names the alias and no pattern. Only the alias shows a window once: after a backfill its filters leave out what
  was replaced, and a pattern such as `turbine-*` would count both, and mix minutes with hours.
- Its time is `window.start`, not `@timestamp`, which is the window's end: a bar stands over the time that it tells of.
- The ids follow from the names, so a second import replaces what the first one made.

Kibana 8.19 takes objects in older formats and migrates them. Each object here says in which version's format it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from strandline.core.field_types import kind_of
from strandline.results.charts.lens import Chart, Column, Field, Operation, count, number, over_time, table
from strandline.results.mapping import FIELD_MAPPINGS

SavedObject = dict[str, Any]

WINDOW_START = Field("window.start", "date", "window start")
_CORE_VERSION = "8.8.0"
_VERSIONS = {"index-pattern": "8.0.0", "search": "8.0.0", "dashboard": "8.9.0"}
_GRID_COLUMNS = 48
_SERIES_MAX = 10
_ROWS_MAX = 100
_CHARTS_MAX = 4
"""Of the measures of one alias: the first ones. Discover shows all."""
_REFRESH_MS = 10_000
_WINDOWS_SHOWN = 240
"""How many windows of the smallest size the dashboard's time goes back at first."""
_AGGREGATION = re.compile(r"\s*(count|sum|min|max)\s*\([^()]*\)\s*", re.IGNORECASE)
"""One aggregate of a field or of all rows, and nothing else."""
_OPERATIONS: dict[str, Operation] = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}


@dataclass(frozen=True)
class Measure:
    """An aggregate of a stage."""

    name: str
    type: str
    sql: str
    """By which the stage computes it."""


@dataclass(frozen=True)
class ResultView:
    """An alias, and what its documents have."""

    alias: str
    stage: str
    size_ms: int
    """Of the windows."""
    every_ms: int
    """From one window's start to the next one's; less than `size_ms` where windows overlap."""
    by: tuple[tuple[str, str], ...]
    """(name, type) of each key field."""
    measures: tuple[Measure, ...]

    @property
    def id(self) -> str:
        """Of the data view."""
        return f"strandline-{self.alias}"

    @property
    def keys(self) -> list[Field]:
        """The key fields that can make the series of a chart."""
        return [field for field in (_field(*one) for one in self.by) if field.has_top_values]

    @property
    def numbers(self) -> list[tuple[Measure, Field]]:
        """The measures that can be drawn."""
        fields = ((one, _field(one.name, one.type)) for one in self.measures)
        return [(one, field) for one, field in fields if field.is_number]


def saved_objects(job: str, views: Sequence[ResultView]) -> list[SavedObject]:
    """Everything for one job, in the order in which Kibana may read it. Empty for a job without an alias."""
    if not views:
        return []
    objects = [one for view in views for one in (_data_view(view), _search(view))]
    return [*objects, _dashboard(job, views)]


def as_ndjson(objects: Sequence[SavedObject]) -> str:
    """As Kibana's page Saved objects reads it: one object a line."""
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


def _data_view(view: ResultView) -> SavedObject:
    labels = {"window.start": "window start", "window.end": "window end", "@timestamp": "window end (@timestamp)"}
    formats = {field.name: _NUMBER_FORMATS[field.type] for _, field in view.numbers}
    attributes = {
        "title": view.alias,
        "name": f"{view.alias} ({_size_text(view.size_ms)})",
        "timeFieldName": WINDOW_START.name,
        "allowNoIndex": True,  # before the first window closes there is no index
        "fields": "[]",
        "fieldAttrs": json.dumps({name: {"customLabel": label} for name, label in labels.items()}),
        "fieldFormatMap": json.dumps(formats),
        "runtimeFieldMap": "{}",
        "sourceFilters": "[]",
    }
    return _saved("index-pattern", view.id, attributes, [])


_NUMBER_FORMATS = {
    "double": {"id": "number", "params": {"pattern": "0,0.[000]"}},
    "long": {"id": "number", "params": {"pattern": "0,0"}},
    "integer": {"id": "number", "params": {"pattern": "0,0"}},
}


def _search(view: ResultView) -> SavedObject:
    """The documents of an alias in Discover, the youngest window first."""
    reference = "kibanaSavedObjectMeta.searchSourceJSON.index"
    source = {"query": {"query": "", "language": "kuery"}, "filter": [], "indexRefName": reference}
    attributes = {
        "title": f"{view.alias}: results",
        "description": f"Every result of stage {view.stage}",
        "columns": [name for name, _ in view.by] + [one.name for one in view.measures],
        "sort": [[WINDOW_START.name, "desc"]],
        "kibanaSavedObjectMeta": {"searchSourceJSON": json.dumps(source)},
    }
    return _saved(
        "search", f"{view.id}-results", attributes, [{"type": "index-pattern", "id": view.id, "name": reference}]
    )


def _dashboard(job: str, views: Sequence[ResultView]) -> SavedObject:
    panels: list[dict[str, Any]] = []
    references: list[dict[str, str]] = []
    y = 0
    for view in views:
        for x, width, height, chart in _placed(view):
            panel = f"{view.alias}-{len(panels)}"
            panels.append(
                {
                    "type": "lens",
                    "panelIndex": panel,
                    "gridData": {"x": x, "y": y, "w": width, "h": height, "i": panel},
                    "title": chart.title,
                    "embeddableConfig": {"attributes": chart.attributes, "enhancements": {}},
                }
            )
            references += [{**one, "name": f"{panel}:{one['name']}"} for one in chart.references]
            if x + width == _GRID_COLUMNS:
                y += height
    meta = {"query": {"query": "", "language": "kuery"}, "filter": []}
    attributes = {
        "title": f"{job}: results",
        "description": f"Made from the pipeline of job {job} by `strandline kibana export {job}`",
        "version": 1,
        "timeRestore": True,
        "timeFrom": f"now-{_WINDOWS_SHOWN * min(view.size_ms for view in views) // 1000}s",
        "timeTo": "now",
        "refreshInterval": {"pause": False, "value": _REFRESH_MS},
        "optionsJSON": json.dumps({"useMargins": True, "syncColors": True, "hidePanelTitles": False}),
        "panelsJSON": json.dumps(panels),
        "kibanaSavedObjectMeta": {"searchSourceJSON": json.dumps(meta)},
    }
    return _saved("dashboard", f"strandline-{job}", attributes, references)


def _placed(view: ResultView) -> Iterator[tuple[int, int, int, Chart]]:
    """The panels of one alias in rows of the grid: x, width, height, panel. The last panel of each row ends at its right edge."""
    key = view.keys[-1] if view.keys else None
    size = _size_text(view.size_ms)
    results = count("results")
    yield 0, 8, 10, number(f"{view.alias}: results", view.id, results)
    title = f"{view.alias}: results of {size} by {key.name}" if key else f"{view.alias}: results of {size}"
    yield 8, 40, 10, over_time(title, view.id, WINDOW_START, key, results, as_bars=True, top=_SERIES_MAX)
    drawn = view.numbers[:_CHARTS_MAX]
    for position, (measure, field) in enumerate(drawn):
        is_last_alone = position == len(drawn) - 1 and position % 2 == 0
        operation = operation_of(measure, view)
        title = f"{view.alias}: {measure.name} ({operation} of {size} windows)"
        chart = over_time(
            title, view.id, WINDOW_START, key, field.measure(operation), as_bars=operation == "sum", top=_SERIES_MAX
        )
        yield 0 if position % 2 == 0 else 24, _GRID_COLUMNS if is_last_alone else 24, 14, chart
    if view.keys:
        measures: list[Column] = [field.measure(operation_of(measure, view)) for measure, field in drawn]
        title = f"{view.alias}: top {', '.join(field.name for field in view.keys)}"
        yield 0, _GRID_COLUMNS, 14, table(title, view.id, view.keys, [*measures, results], top=_ROWS_MAX)


def operation_of(measure: Measure, view: ResultView) -> Operation:
    """What makes one value of those of several windows.

    An extreme stays one, sums and counts add up unless the windows overlap, and anything else is averaged.
    """
    found = _AGGREGATION.fullmatch(measure.sql)
    operation = _OPERATIONS[found[1].lower()] if found else "average"
    return "average" if operation == "sum" and view.every_ms < view.size_ms else operation


def _size_text(size_ms: int) -> str:
    return str(timedelta(milliseconds=size_ms))
