"""Proposes the document of a stream from change events."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from strandline.core.documents import COLUMNS_MAX
from strandline.processing.formats.debezium.reader import row_of_change
from strandline.processing.formats.inference.sample import Proposal, Proposed, Sample
from strandline.processing.formats.inference.schemas import Path, leaves, schema_of


def propose(name: str, sample: Sample) -> Proposed | None:
    """See `Format.propose`."""
    if sample.json is None or not sample.json.objects or any(row_of_change(one) is None for one in sample.json.objects):
        return None
    proposal = _of_changes(name, sample.json.objects)
    proposal.notes += sample.json.notes
    return proposal, [json.dumps(one).encode() for one in sample.json.objects]


def _of_changes(name: str, events: list[dict[str, Any]]) -> Proposal:
    """Return a proposal for Debezium's change events: the columns of their rows, the operation, and its time."""
    found: dict[Path, list[Any]] = defaultdict(list)
    for event in events:
        for path, value in leaves(row_of_change(event) or {}, ()):
            found[path].append(value)
    proposal = Proposal({"stream": name, "format": "debezium"})
    schema = schema_of(found, len(events), proposal.notes, is_text=False, fields_max=COLUMNS_MAX - 2)  # two are added
    for field_name, spec in schema.items():  # a nested column, or a column whose name isn't a field name
        if isinstance(spec, dict) and "from" in spec:
            schema[field_name] = spec | {"from": f"$.row{spec['from'][1:]}"}
    for field_name, kind, leads in (("op", "string", "$.op"), ("changed", "timestamp", "$.source.ts_ms")):
        if field_name not in schema:
            schema[field_name] = {"type": kind, "from": leads}
    proposal.document["schema"] = schema
    proposal.notes.append("op is c, r, u or d (created, read by a snapshot, updated, deleted): where: op <> 'd'")
    return proposal
