"""A source of a lookup whose rows a test types in."""

from __future__ import annotations

import time
from typing import Any

from strandline.core.errors import StrandlineError
from strandline.core.lookups.lookup import LookupSpec
from strandline.core.lookups.packed_rows import pack_rows
from strandline.ledger.lookups.sources import SourceBegin, SourceRows
from strandline.ledger.states import LookupRow, Offsets
from strandline.processing.formats.lookups.rows import canonical_text, digest_of, encode_rows, keyed_rows, read_rows


class TypedSources:
    """Replaces `SourceReader`, and returns the rows of `rows`. If `error` is set, each reading raises it."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.error: StrandlineError | None = None
        self.readings = 0
        self.takes_s = 0.0

    def read_all(self, spec: LookupSpec) -> tuple[bytes, int, SourceBegin]:
        text = self._text(spec)
        return text, len(self.rows), SourceBegin(self._position(spec, 0), 0)

    def read_on(self, present: LookupRow, position: Offsets | None) -> SourceRows:
        time.sleep(self.takes_s)  # sleeps: the slowness of this source
        spec = LookupSpec.described(present.document)
        text = self._text(spec)
        digest = digest_of(spec, text)
        packed = None if digest == present.digest else pack_rows(text)
        return SourceRows(digest, packed, len(self.rows), self._position(spec, self.readings), int(self.takes_s * 1000))

    def _text(self, spec: LookupSpec) -> bytes:
        self.readings += 1
        if self.error is not None:
            raise self.error
        rows = read_rows(spec, encode_rows(self.rows))
        assert not isinstance(rows, list), rows
        return canonical_text(keyed_rows(spec, rows))

    def _position(self, spec: LookupSpec, offset: int) -> Offsets | None:
        assert spec.source is not None
        return None if spec.source.stream is None else {spec.source.stream: {0: offset}}
