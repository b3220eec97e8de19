"""Proposes the document of a stream from packs of SenML."""

from __future__ import annotations

import json
from typing import Any

from strandline.processing.formats.inference.sample import Proposal, Proposed, Sample
from strandline.processing.formats.inference.schemas import NoSampleError
from strandline.processing.formats.senml.reader import VALUES, SenmlPacks

_NAMES = {"n", "bn"}
_TYPES = {"value": "double", "string": "string", "boolean": "boolean", "data": "string", "sum": "double"}


def propose(name: str, sample: Sample) -> Proposed | None:
    """Return a document for the stream `name`, and the records of the sample. None if the sample isn't of this format."""
    packs = _packs(sample)
    if not packs:
        return None
    values = [json.dumps(pack).encode() for pack in packs]
    rows: list[dict[str, Any]] = []
    for found in SenmlPacks().objects(values, [None] * len(values)):
        if isinstance(found, bytes):
            rows += json.loads(found)["records"]
    if not rows:
        raise NoSampleError(
            "the sample looks like SenML, and none of its packs can be resolved; see docs/formats.md, SenML"
        )
    schema: dict[str, Any] = {"name": "string"}
    notes = ["each record of a pack becomes a row, with its base values: RFC 8428"]
    with_time = sum("time" in row for row in rows)
    if with_time:
        schema["time"] = {"type": "timestamp", "unit": "ms", "required": with_time == len(rows)}
    if with_time < len(rows):
        notes.append(
            "records without a time, or with one relative to now, have their log time; for a pipeline: event_time: {from: log}"
        )
    for member, kind in {"unit": "string", **_TYPES}.items():
        if count := sum(member in row for row in rows):
            schema[member] = kind if count == len(rows) else f"{kind}?"
    return Proposal({"stream": name, "format": "senml", "schema": schema}, notes), values


def _packs(sample: Sample) -> list[list[Any]]:
    """Return the packs of the sample. Empty if it contains anything else. A *pack* is an array of SenML records (RFC 8428)."""
    if sample.text is None or sample.text.lstrip()[:1] != "[":
        return []
    try:
        whole = json.loads(sample.text)
        packs = whole if all(isinstance(one, list) for one in whole) else [whole]
    except ValueError:
        try:
            packs = [json.loads(line) for line in sample.lines]
        except ValueError:
            return []
    return packs if all(map(_is_pack, packs)) else []


def _is_pack(pack: Any) -> bool:
    if not isinstance(pack, list) or not pack or not all(isinstance(one, dict) for one in pack):
        return False
    has_values = any(one.keys() & {*VALUES, "s"} for one in pack)
    known = {"n", "bn", "t", "bt", "u", "bu", "bv", "bs", "s", "bver", "ut", *VALUES}
    return has_values and any(one.keys() & _NAMES for one in pack) and all(one.keys() <= known for one in pack)
