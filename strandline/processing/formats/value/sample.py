"""Proposes the document of a stream from bare values. Any text is one value per line."""

from __future__ import annotations

from strandline.processing.formats.inference.field_types import is_beyond, type_of
from strandline.processing.formats.inference.sample import Proposal, Proposed, Sample
from strandline.processing.formats.inference.schemas import unfitting_note
from strandline.processing.formats.inference.text_hints import hint_of


def propose(name: str, sample: Sample) -> Proposed | None:
    """Return a document for the stream `name`, and the records of the sample. None if the sample isn't of this format."""
    return None if sample.text is None else _of_values(name, sample.lines)


def _of_values(name: str, lines: list[str]) -> Proposed:
    usual = [line for line in lines if not is_beyond(line)] or lines
    proposed = type_of("value", [line.strip() for line in usual], is_text=True)
    spec = proposed.spec if len(proposed.spec) > 1 else proposed.spec["type"]
    proposal = Proposal({"stream": name, "format": "value", "schema": {"value": spec}})
    if proposed.unfitting:
        proposal.notes.append(unfitting_note("value", proposed.spec, usual, proposed.unfitting))
    if proposed.spec["type"] == "string" and (hint := hint_of("value", usual)) is not None:
        proposal.notes.append(hint)
    proposal.notes.append("add a field that identifies the device, from the topic (mqtt: {fields}) or the URL's query")
    proposal.notes.append("the records contain no time; for a pipeline: event_time: {from: log}")
    return proposal, [line.encode() for line in lines]
