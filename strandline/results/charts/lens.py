"""Charts and tables of Kibana Lens as plain data, each over one data view.

A column names a field and an operation. If they don't fit, Kibana shows nothing or an error. Therefore columns are
created only through `Field`, which knows the operations that its type allows.

Format: as Kibana 8.19 exports panels of a dashboard (https://github.com/elastic/kibana, x-pack lens plugin, formBased
datasource). Objects with an older version are migrated when they are imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Column = dict[str, Any]
Operation = Literal["sum", "average", "min", "max"]

RECORDS = "___records___"
"""Source field of a count of documents."""
_LAYER = "results"
_DATA_TYPES = {
    "keyword": "string",
    "long": "number",
    "integer": "number",
    "double": "number",
    "boolean": "boolean",
    "date": "date",
}
"""Type of a mapping -> its name in Lens."""


@dataclass(frozen=True)
class Field:
    """A field of the documents, with its type in the mapping."""

    name: str
    type: str
    label: str

    @property
    def is_number(self) -> bool:
        """True if its values can be added up."""
        return _DATA_TYPES[self.type] == "number"

    @property
    def has_top_values(self) -> bool:
        """True if Lens finds its most frequent values: for strings, numbers, and booleans, but not for dates."""
        return self.type != "date"

    def histogram(self) -> Column:
        """Return the time axis. The field must be a date."""
        assert self.type == "date"
        return {
            "label": self.label,
            "customLabel": True,
            "dataType": "date",
            "operationType": "date_histogram",
            "sourceField": self.name,
            "isBucketed": True,
            "scale": "interval",
            "params": {"interval": "auto", "includeEmptyRows": True, "dropPartials": False},
        }

    def top(self, size: int, by: str) -> Column:
        """Return the values with the most of column `by`, with one row for all others, and one for documents without a
        value."""
        assert self.has_top_values
        return {
            "label": self.label,
            "customLabel": True,
            "dataType": _DATA_TYPES[self.type],
            "operationType": "terms",
            "sourceField": self.name,
            "isBucketed": True,
            "scale": "ordinal",
            "params": {
                "size": size,
                "orderBy": {"type": "column", "columnId": by},
                "orderDirection": "desc",
                "otherBucket": True,
                "missingBucket": True,
                "parentFormat": {"id": "terms"},
                "include": [],
                "exclude": [],
                "includeIsRegex": False,
                "excludeIsRegex": False,
            },
        }

    def measure(self, operation: Operation) -> Column:
        """Return one number of all values. The field must be a number."""
        assert self.is_number
        return _number_of(self.label, operation, self.name, empty_as_null=True)


def count(label: str) -> Column:
    """Return the column with the number of documents."""
    return _number_of(label, "count", RECORDS, empty_as_null=False)


def _number_of(label: str, operation: str, source: str, *, empty_as_null: bool) -> Column:
    return {
        "label": label,
        "customLabel": True,
        "dataType": "number",
        "operationType": operation,
        "sourceField": source,
        "isBucketed": False,
        "scale": "ratio",
        "params": {"emptyAsNull": empty_as_null},
    }


@dataclass(frozen=True)
class Chart:
    """One panel, over one data view."""

    title: str
    view: str
    """The data view's id."""
    kind: str
    columns: dict[str, Column]
    visualization: dict[str, Any]

    @property
    def references(self) -> list[dict[str, str]]:
        return [{"type": "index-pattern", "id": self.view, "name": f"indexpattern-datasource-layer-{_LAYER}"}]

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes in a dashboard, or in a saved object of the type `lens`."""
        layer = {"columnOrder": list(self.columns), "columns": self.columns, "incompleteColumns": {}}
        return {
            "title": self.title,
            "visualizationType": self.kind,
            "references": self.references,
            "state": {
                "query": {"query": "", "language": "kuery"},
                "filters": [],
                "internalReferences": [],
                "adHocDataViews": {},
                "datasourceStates": {"formBased": {"layers": {_LAYER: layer}}},
                "visualization": self.visualization,
            },
        }


def over_time(
    title: str, view: str, time: Field, key: Field | None, measure: Column, *, as_bars: bool, top: int
) -> Chart:
    """Return a chart of a measure over time, with one series for each of the `top` values of the key."""
    # The key is first: then these are the top values of the whole time, and not other values in each of its parts.
    columns = {} if key is None else {"key": key.top(top, by="measure")}
    columns |= {"time": time.histogram(), "measure": measure}
    layer = {
        "layerId": _LAYER,
        "layerType": "data",
        "seriesType": "bar_stacked" if as_bars else "line",
        "xAccessor": "time",
        "accessors": ["measure"],
    } | ({} if key is None else {"splitAccessor": "key"})
    visualization = {
        "preferredSeriesType": layer["seriesType"],
        "legend": {"isVisible": True, "position": "right"},
        "valueLabels": "hide",
        "fittingFunction": "None",
        "layers": [layer],
    }
    return Chart(title, view, "lnsXY", columns, visualization)


def table(title: str, view: str, keys: Sequence[Field], measures: Sequence[Column], *, top: int) -> Chart:
    """Return a table of the keys with the most of the first measure, with all measures."""
    columns = {f"key-{number}": key.top(top, by="measure-0") for number, key in enumerate(keys)}
    columns |= {f"measure-{number}": measure for number, measure in enumerate(measures)}
    visualization = {
        "layerId": _LAYER,
        "layerType": "data",
        "columns": [{"columnId": name} for name in columns],
        "sorting": {"columnId": "measure-0", "direction": "desc"},
        "paging": {"size": 10, "enabled": True},
    }
    return Chart(title, view, "lnsDatatable", columns, visualization)


def number(title: str, view: str, measure: Column) -> Chart:
    """Return a panel with one number for the displayed time range."""
    visualization = {"layerId": _LAYER, "layerType": "data", "metricAccessor": "measure"}
    return Chart(title, view, "lnsMetric", {"measure": measure}, visualization)
