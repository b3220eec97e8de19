"""Charts and tables of Kibana Lens as plain data, each over one data view.

A column names a field and what is done with it, and Kibana shows nothing, or an error, where the two don't fit. Therefore the
only way to a column is through `Field`, which knows what its type allows.

Format: what Kibana 8.19 exports for panels of a dashboard (https://github.com/elastic/kibana, x-pack lens plugin, formBased
datasource). Objects that say an older version are migrated at their import.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Column = dict[str, Any]
Operation = Literal["sum", "average", "min", "max"]

RECORDS = "___records___"
"""What a count counts."""
_LAYER = "results"
_DATA_TYPES = {
    "keyword": "string",
    "long": "number",
    "integer": "number",
    "double": "number",
    "boolean": "boolean",
    "date": "date",
}
"""What Lens calls the types of a mapping."""


@dataclass(frozen=True)
class Field:
    """A field of the documents, with its type in the mapping."""

    name: str
    type: str
    label: str

    @property
    def is_number(self) -> bool:
        """Whether its values can be added up."""
        return _DATA_TYPES[self.type] == "number"

    @property
    def has_top_values(self) -> bool:
        """Whether Lens finds its most frequent values: of text, numbers and booleans, not of dates."""
        return self.type != "date"

    def histogram(self) -> Column:
        """The time axis. The field is a date."""
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
        """The values that have the most of column `by`, and one row for all others and one for those without a value."""
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
        """One number of all values. The field is a number."""
        assert self.is_number
        return _number_of(self.label, operation, self.name, empty_as_null=True)


def count(label: str) -> Column:
    """How many documents there are."""
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
        """As a dashboard holds it, or a saved object of the type `lens`."""
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
    """A measure over time, one series for each of the `top` values of the key."""
    # The key comes first: these are the top values of the whole time, and not others in each of its parts.
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
    """The keys with the most of the first measure, a row each, with all measures."""
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
    """One number of the whole time that is looked at."""
    visualization = {"layerId": _LAYER, "layerType": "data", "metricAccessor": "measure"}
    return Chart(title, view, "lnsMetric", {"measure": measure}, visualization)
