"""Proposes the document of a stream from lines of InfluxDB's protocol."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from strandline.processing.formats.inference.sample import Proposal, Proposed, Sample, readable
from strandline.processing.formats.inference.schemas import Path, schema_of
from strandline.processing.formats.inference.time_order import event_time_of
from strandline.processing.formats.influx.reader import InfluxLines
from strandline.processing.formats.record_fields import Rejection


def propose(name: str, sample: Sample) -> Proposed | None:
    """Return a document for the stream `name`, and the records of the sample. None if the sample isn't of this format."""
    return _of_influx(name, sample.lines) if sample.lines and _are_influx(sample.lines) else None


def _are_influx(lines: list[str]) -> bool:
    objects = InfluxLines().objects([line.encode() for line in lines], [None] * len(lines))
    return sum(not isinstance(one, Rejection) for one in objects) * 2 > len(lines)


def _of_influx(name: str, lines: list[str]) -> Proposed:
    values = [line.encode() for line in lines]
    found: dict[Path, list[Any]] = defaultdict(list)
    objects = InfluxLines().objects(values, [None] * len(values))
    good = 0
    for members in readable([one.decode() for one in objects if isinstance(one, bytes)]):
        good += 1
        for key, value in members.items():
            found[(key,)].append(value)
    proposal = Proposal({"stream": name, "format": "influx"})
    schema = schema_of(found, good, proposal.notes, is_text=False)
    times = found[("time",)]
    if times and all(isinstance(value, int) for value in times):
        proposed = schema["time"]
        unit = proposed.get("unit", "ns") if isinstance(proposed, dict) else "ns"
        schema["time"] = {
            "type": "timestamp" if event_time_of(schema) == "time" or len(times) == good else "timestamp?",
            "unit": unit,
        }
        if unit != "ns":
            proposal.notes.append(
                f"time counts {unit} in these lines. A write request by HTTP with ?precision={unit} converts it to ns; if "
                "all lines are sent in this way, write unit: ns"
            )
    proposal.document["schema"] = schema
    return proposal, values
