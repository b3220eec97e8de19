"""The parts in which an audit reads the files and tables of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.core.settings import Settings
from strandline.processing.audit.parts import Part
from strandline.processing.audit.plan import AuditPlan
from strandline.processing.audit.sinks.files import files_parts
from strandline.processing.audit.sinks.places import Place, places_of
from strandline.processing.audit_queries.table import Table


def sink_parts(settings: Settings, plan: AuditPlan, compared: Table) -> tuple[list[Part], list[str]]:
    """The parts, and the stores that hold nothing. Raises SinkUnavailable, InvalidSettings, Conflict."""
    parts: list[Part] = []
    absent: list[str] = []
    for place in places_of(plan):
        found = _parts_of(settings, place, compared)
        if found is None:
            absent.append(place.store)
        else:
            parts += found
    return parts, absent


def _parts_of(settings: Settings, place: Place, compared: Table) -> Sequence[Part] | None:
    if place.kind == "files":
        return files_parts(place, compared)
    # Imported where it is used: it takes half a second.
    from strandline.processing.audit.sinks.tables import table_parts
    from strandline.results.sinks.sql_writer import sql_url

    return table_parts(sql_url(settings), place, compared)
