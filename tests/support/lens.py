"""Reads panels of Kibana Lens independently of what made them: may Kibana do this to these fields, and what does it search for?

The rules are those of the formBased datasource of Kibana 8.19 (x-pack lens plugin, operations/definitions): which kinds of
fields an operation takes, and into which aggregation of Elasticsearch it turns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

KINDS = {
    "keyword": "string",
    "long": "number",
    "integer": "number",
    "double": "number",
    "boolean": "boolean",
    "date": "date",
}
TAKES = {
    "date_histogram": {"date"},
    "terms": {"string", "number", "boolean", "ip"},
    "sum": {"number"},
    "average": {"number"},
    "min": {"number", "date"},
    "max": {"number", "date"},
}
METRICS = {"sum": "sum", "average": "avg", "min": "min", "max": "max"}


@dataclass(frozen=True)
class Panel:
    title: str
    alias: str
    time_field: str
    columns: dict[str, dict[str, Any]]
    order: list[str]
    used: set[str]
    """The columns that the picture names."""


def panels(objects: list[dict[str, Any]]) -> Iterator[Panel]:
    """Every panel of every dashboard among these saved objects, with the data view that its references lead to."""
    views = {one["id"]: one["attributes"] for one in objects if one["type"] == "index-pattern"}
    for dashboard in (one for one in objects if one["type"] == "dashboard"):
        for panel in json.loads(dashboard["attributes"]["panelsJSON"]):
            attributes = panel["embeddableConfig"]["attributes"]
            (inner,) = attributes["references"]
            (outer,) = [r for r in dashboard["references"] if r["name"] == f"{panel['panelIndex']}:{inner['name']}"]
            assert (outer["type"], outer["id"]) == (inner["type"], inner["id"]) == ("index-pattern", inner["id"])
            ((layer_id, layer),) = attributes["state"]["datasourceStates"]["formBased"]["layers"].items()
            assert inner["name"] == f"indexpattern-datasource-layer-{layer_id}"
            view = views[inner["id"]]
            yield Panel(
                attributes["title"],
                view["title"],
                view["timeFieldName"],
                layer["columns"],
                layer["columnOrder"],
                _used(attributes["state"]["visualization"], layer_id),
            )


def _used(visualization: dict[str, Any], layer_id: str) -> set[str]:
    found: set[str] = set()
    for layer in visualization.get("layers", [visualization]):
        assert layer["layerId"] == layer_id
        found |= {layer[name] for name in ("xAccessor", "splitAccessor", "metricAccessor") if name in layer}
        found |= set(layer.get("accessors", ()))
        found |= {column["columnId"] for column in layer.get("columns", ())}
    return found


def faults(panel: Panel, mapping: dict[str, Any]) -> list[str]:
    """Return a message for each part that Kibana would not show.

    `mapping`: mapping of the documents in Elasticsearch.
    """
    found = []
    if field_type(mapping, panel.time_field) != "date":
        found.append(f"{panel.title}: {panel.time_field} is no date")
    if set(panel.order) != set(panel.columns) or panel.used != set(panel.columns):
        found.append(
            f"{panel.title}: columns {sorted(panel.columns)}, ordered {panel.order}, shown {sorted(panel.used)}"
        )
    buckets = [panel.columns[name]["isBucketed"] for name in panel.order]
    if buckets != sorted(buckets, reverse=True):
        found.append(f"{panel.title}: a bucket is after a number")
    for name, column in panel.columns.items():
        operation, field = column["operationType"], column["sourceField"]
        if operation == "count":
            if field != "___records___":
                found.append(f"{panel.title}: {name} counts {field}")
            continue
        kind = KINDS.get(field_type(mapping, field) or "")
        if kind not in TAKES[operation]:
            found.append(f"{panel.title}: {operation} of {field}, which is {kind}")
        if column["isBucketed"] != (operation in ("date_histogram", "terms")):
            found.append(f"{panel.title}: {name} is bucketed: {column['isBucketed']}")
        if operation == "terms" and panel.columns.get(column["params"]["orderBy"]["columnId"], {}).get(
            "isBucketed", True
        ):
            found.append(f"{panel.title}: {name} is ordered by no number")
    return found


def field_type(mapping: dict[str, Any], path: str) -> str | None:
    """The type of a field by its path with dots; None when the mapping hasn't it."""
    found: dict[str, Any] = mapping
    for part in path.split("."):
        found = found.get("properties", {}).get(part, {})
    kind: str | None = found.get("type")
    return kind


def search(panel: Panel, interval: str = "1m") -> dict[str, Any]:
    """The search that the panel comes down to, all times included."""
    numbers = {
        name: {METRICS[column["operationType"]]: {"field": column["sourceField"]}}
        for name, column in panel.columns.items()
        if column["operationType"] in METRICS
    }
    inner: dict[str, Any] = numbers
    for name in reversed([name for name in panel.order if panel.columns[name]["isBucketed"]]):
        column = panel.columns[name]
        body: dict[str, Any] = {"field": column["sourceField"]}
        if column["operationType"] == "date_histogram":
            made = {"date_histogram": {**body, "fixed_interval": interval}}
        else:
            by = column["params"]["orderBy"]["columnId"]
            order = {by if by in numbers else "_count": column["params"]["orderDirection"]}
            made = {"terms": {**body, "size": column["params"]["size"], "order": order}}
        # A terms aggregation is ordered by an adjacent number, even if another bucket is in between.
        inner = {name: {**made, **({"aggs": {**numbers, **inner}} if inner or numbers else {})}}
    return {"size": 0, "track_total_hits": True, "aggs": inner} if inner else {"size": 0, "track_total_hits": True}


def counted(answer: dict[str, Any]) -> int:
    """Return the number of documents in the outermost buckets of an answer; without buckets, the number of found
    documents."""
    for found in answer.get("aggregations", {}).values():
        if "buckets" in found:
            return int(sum(one["doc_count"] for one in found["buckets"]) + found.get("sum_other_doc_count", 0))
    return int(answer["hits"]["total"]["value"])
