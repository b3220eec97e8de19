"""Payloads within a record: `embedded` of the stream's document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from strandline.core.document_model import DocumentModel
from strandline.core.document_values import PathText
from strandline.core.documents import Path
from strandline.core.json_paths import parse_json_path

EMBEDDED_MAX = 10


class EmbeddedSpec(DocumentModel):
    """A string within a record that contains JSON, which replaces the string."""

    at: PathText
    """Path of the string, as `$.payload`. Only names of members."""
    encoding: Literal["text", "base64", "hex"] = "text"
    """Encoding of the string: `text` if it is JSON, otherwise `base64` or `hex` of the bytes of JSON."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        path = parse_json_path(self.at)
        if not path or not all(isinstance(step, str) for step in path):
            yield ("at",), f"{self.at!r} has no name or has an index; expected names of members, as $.payload"
