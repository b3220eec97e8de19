"""Avro files, read as the records that devices would send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from typing import BinaryIO

from strandline.core.errors import PermanentError
from strandline.core.files.avro_files import AvroFile

_AVRO_ERRORS = (ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError, SystemError, MemoryError)
"""Errors of the reader for bytes that aren't Avro."""


def file_records(file: BinaryIO, schema: str | None, name: str) -> Iterator[bytes]:
    """Yield each record, encoded with the stream's schema and without the header of the file. Raises PermanentError if the
    file isn't an Avro file with such records."""
    if schema is None:
        raise PermanentError(
            f"{name}: records of this stream name a schema of the registry, but records of an Avro file don't. Pass them as they "
            "are sent, each in base64 on its own line (.b64)"
        )
    import fastavro  # slow to import, and only streams of Avro need it
    from fastavro.read import SchemaResolutionError

    try:
        parsed = fastavro.parse_schema(json.loads(schema))
        for record in AvroFile(file).records(parsed):
            written = BytesIO()
            fastavro.schemaless_writer(written, parsed, record)
            yield written.getvalue()
    except (*_AVRO_ERRORS, SchemaResolutionError) as error:
        raise PermanentError(
            f"{name} is not an Avro file with records of the stream's schema: {error or type(error).__name__}"
        ) from error
