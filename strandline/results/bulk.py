"""Bulk requests: documents as the lines that Elasticsearch's `_bulk` takes, cut to a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from strandline.results.document import Document, DocumentColumns
from strandline.results.text_columns import bytes_between, join_texts, text_ends

_ACTION = b'{"create":{"_index":"'
_BEFORE_ID = b'","_id":"'
_CREATED = b',"status":201}},'


@dataclass(frozen=True, slots=True)
class Bulk:
    """The documents of one request."""

    count: int
    body: bytes
    created: bytes
    """The answer, to the byte, that tells of nothing but that each was created where it was asked. Elasticsearch may write it
    in other bytes: then each item is read."""
    read: Callable[[], list[Document]]
    """Gives each document, for when not all was created."""

    @staticmethod
    def of(documents: Sequence[Document]) -> Bulk:
        places = [b'%b%b%b%b"' % (_ACTION, one.index.encode(), _BEFORE_ID, one.id.encode()) for one in documents]
        lines = [b"%b}}\n%b\n" % (place, one.source) for place, one in zip(places, documents, strict=True)]
        items = b"".join(place + _CREATED for place in places)
        return Bulk(len(documents), b"".join(lines), _answer(items), lambda: list(documents))


def cut_bulks(columns: DocumentColumns, documents_max: int, bytes_max: int) -> Iterator[Bulk]:
    """Yield bulks of at most so many documents and bytes; a document larger than that goes alone. None of the rows may have a
    problem."""
    places = join_texts([_ACTION, columns.indices(), _BEFORE_ID, columns.ids.cast(pa.binary()), b'"'])
    lines = join_texts([places, b"}}\n", *columns.pieces, b"\n"])
    items = join_texts([places, _CREATED])
    ends = text_ends(lines)
    first = 0
    while first < len(columns):
        fits = int(np.searchsorted(ends, ends[first] + bytes_max, side="right")) - 1
        next_ = max(first + 1, min(fits, first + documents_max))
        yield Bulk(
            next_ - first,
            bytes_between(lines, first, next_),
            _answer(bytes_between(items, first, next_)),
            partial(_read, columns, range(first, next_)),
        )
        first = next_


def _read(columns: DocumentColumns, rows: Sequence[int]) -> list[Document]:
    return [row for row in columns.taken(rows).rows() if isinstance(row, Document)]


def _answer(items: bytes) -> bytes:
    return b'{"items":[' + items.removesuffix(b",") + b"]}"
