"""The field `files` of an emission."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from strandline.core.document_model import DocumentModel
from strandline.core.documents import Path


class FilesSpec(DocumentModel):
    """An emission to files by day, which count when a manifest contains them."""

    path: str
    """An absolute directory that all writing processes share, or a URI (`s3://`, `gs://`, `hdfs://`)."""
    format: Literal["parquet"] = "parquet"
    """Format of the files."""

    def contradictions(self) -> Iterator[tuple[Path, str]]:
        scheme, _, rest = self.path.partition("://")
        if not (self.path.startswith("/") or (rest and re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme))):
            yield ("path",), "expected an absolute directory, or a URI such as s3://bucket/results"
        elif rest and ("@" in rest.partition("/")[0] or "?" in rest):
            yield ("path",), "must not contain credentials or settings; set them in the environment of the processes"
