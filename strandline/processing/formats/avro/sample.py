"""Proposes the document of a stream from a file of Avro."""

from __future__ import annotations

import json
from collections import defaultdict
from io import BytesIO
from itertools import islice
from typing import Any

from strandline.core.field_types import is_nested
from strandline.core.files.avro_files import AvroFile
from strandline.core.schemas.avro_schemas import read_avro_schema
from strandline.processing.formats.avro.reader import AvroRecords, declared_type
from strandline.processing.formats.inference.sample import SAMPLE_RECORDS_MAX, Proposal, Proposed, Sample
from strandline.processing.formats.inference.schemas import NoSampleError, Path, leaves, schema_of

_AVRO_FILE = b"Obj\x01"


def propose(name: str, sample: Sample) -> Proposed | None:
    """Return a document for the stream `name`, and the records of the sample. None if the sample isn't of this format."""
    return _of_file(name, sample.content) if sample.content.startswith(_AVRO_FILE) else None


def _of_file(name: str, sample: bytes) -> Proposed:
    """Return a proposal for an Avro file: its schema, and its records as they would be sent."""
    import fastavro

    values = []
    try:
        file = AvroFile(BytesIO(sample))
        schema: Any = fastavro.parse_schema(file.schema_as_written)
        for record in islice(file.records(), SAMPLE_RECORDS_MAX):
            written = BytesIO()
            fastavro.schemaless_writer(written, schema, record)
            values.append(written.getvalue())
        text = json.dumps(_plain_schema(schema))
        objects = AvroRecords((), None, text).objects(values, [None] * len(values))
    except (ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise NoSampleError(f"the sample is not a readable Avro file ({error or type(error).__name__})") from error
    found: dict[Path, list[Any]] = defaultdict(list)
    for one in objects:
        for path, value in leaves(json.loads(one) if isinstance(one, bytes) else {}, ()):
            found[path].append(value)
    proposal = Proposal({"stream": name, "format": "avro", "avro": {"schema": text}})
    read_schema = read_avro_schema(text)
    types = {path: kind for path in found if (kind := declared_type(read_schema, path)) and not is_nested(kind)}
    fields = schema_of(found, len(values), proposal.notes, is_text=False, declared=types)
    proposal.document["schema"] = fields
    proposal.notes.append("send each record separately, without the header of the file; or use a schema registry")
    return proposal, values


def _plain_schema(schema: Any) -> Any:
    """Return a schema without the members that the library adds."""
    if isinstance(schema, dict):
        return {key: _plain_schema(value) for key, value in schema.items() if not key.startswith("__")}
    return [_plain_schema(one) for one in schema] if isinstance(schema, list) else schema
