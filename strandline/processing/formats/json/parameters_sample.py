"""Proposes the document of a stream from queries of URLs and bodies of forms, one per line."""

from __future__ import annotations

import json
import re

from strandline.ingest.gateway.framing import Unframable
from strandline.ingest.http.simple_senders import json_of_parameters
from strandline.processing.formats.inference.objects import propose_for_objects
from strandline.processing.formats.inference.sample import Proposed, Sample

_LINE = re.compile(
    r"(?P<url>(?:(?:GET|POST|PUT) )?(?:https?://[^/?\s]+)?(?:/[^?\s]*)?\?)?"
    r"(?P<parameters>[\w.%+\[\]-]+=[^&\s]*(?:&[^&\s]*)*)(?: HTTP/[\d.]+)?"
)


def propose_for_parameters(name: str, sample: Sample) -> Proposed | None:
    """Return a document for parameters, and their records as the HTTP gateway makes them. None if a line has another form, or if
    most lines have only one parameter."""
    found = [_LINE.fullmatch(line.strip()) for line in sample.lines]
    lines = [one for one in found if one is not None]
    if len(lines) < len(found) or 2 * sum("&" in one["parameters"] for one in lines) <= len(lines):
        return None
    try:
        values = [json_of_parameters(one["parameters"].encode()) for one in lines]
    except Unframable:
        return None
    proposal = propose_for_objects(name, [json.loads(value) for value in values], explodes=False)
    schema = proposal.document.pop("schema")
    accepted = ["query"] if all(one["url"] for one in lines) else ["form", "query"]
    proposal.document |= {"http": {"accept": accepted}, "schema": schema}
    proposal.notes.append(
        "the lines are parameters of forms or queries; send them by HTTP, which makes a JSON object of each request. strandline "
        "ingest and pipeline run need these objects"
    )
    return proposal, values
