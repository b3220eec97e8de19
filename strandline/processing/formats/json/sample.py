"""Proposes the document of a stream from JSON, or from a Parquet file, whose rows become JSON objects."""

from __future__ import annotations

import json
from functools import partial

from strandline.processing.formats.inference.objects import propose_for_lists, propose_for_objects
from strandline.processing.formats.inference.parquet_sample import declared_types, read_parquet
from strandline.processing.formats.inference.sample import SAMPLE_RECORDS_MAX, Proposed, Sample
from strandline.processing.formats.inference.schemas import NoSampleError
from strandline.processing.formats.json.parameters_sample import propose_for_parameters

_PARQUET_FILE = b"PAR1"


def propose(name: str, sample: Sample) -> Proposed | None:
    """Return a document for the stream `name`, and the records of the sample. None if the sample isn't of this format."""
    if sample.content.startswith(_PARQUET_FILE):
        return _of_parquet(name, sample.content)
    if sample.json is None:
        return propose_for_parameters(name, sample)
    lists = [record for record in sample.json.records if isinstance(record, list)]
    proposal = propose_for_lists(name, lists) if len(lists) > len(sample.json.objects) else None
    if proposal is None and not sample.json.objects:
        raise NoSampleError(
            "the sample consists of arrays of different forms; pass records that are objects, or arrays of objects or of values"
        )
    proposal = proposal or propose_for_objects(name, sample.json.objects)
    proposal.notes += sample.json.notes
    if sample.json.missing:
        schema = proposal.document.pop("schema")
        proposal.document |= {"missing": sample.json.missing, "schema": schema}
    return proposal, sample.json.values


def _of_parquet(name: str, sample: bytes) -> Proposed:
    """Return a proposal for a Parquet file: its rows as JSON objects, with the types of its schema."""
    rows, schema = read_parquet(sample, SAMPLE_RECORDS_MAX)
    proposal = propose_for_objects(name, list(map(json.loads, rows)), declared=partial(declared_types, schema))
    proposal.notes.append("pipeline run and ingest convert each row of the file to a JSON object")
    return proposal, rows
