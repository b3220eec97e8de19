"""Bulk requests: documents as lines for Elasticsearch's `_bulk`, cut to a bounded size.

A document is created. If it has a version, it is created or replaces a lower version.

Documents are written to the write alias of their index (with `require_alias`), so that no request creates an index
implicitly. Otherwise an index whose template or documents were deleted would be recreated without its mapping or its
documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from strandline.results.document import Document, DocumentColumns
from strandline.results.names import write_alias
from strandline.results.text_columns import bytes_between, join_texts, text_ends

_ACTION = b'{"create":{"_index":"'
_VERSIONED, _VERSIONED_END = b'{"index":{"version_type":"external","version":', b',"_index":"'
_BEFORE_ID = b'","_id":"'
_WRITE_BEFORE_ID = write_alias("").encode() + _BEFORE_ID
_CREATED = b',"status":201}},'
_ANSWER_START, _ANSWER_END = b'{"items":[', b"]}"


@dataclass(frozen=True, slots=True)
class Bulk:
    """The documents of one request."""

    count: int
    body: bytes
    created: bytes
    """Exact bytes of the answer if each document was created in its index. Elasticsearch may encode the answer
    differently: then each item is read. Empty if documents have versions, because then each item is always read."""
    read: Callable[[], list[Document]]
    """Returns the documents, for the case that not all were created."""

    @staticmethod
    def of(documents: Sequence[Document]) -> Bulk:
        lines = [
            b'%b%b%b%b"}}\n%b\n' % (_action(one), one.index.encode(), _WRITE_BEFORE_ID, one.id.encode(), one.source)
            for one in documents
        ]
        if any(one.version is not None for one in documents):
            return Bulk(len(documents), b"".join(lines), b"", lambda: list(documents))
        items = [
            b'%b%b%b%b"%b' % (_ACTION, one.index.encode(), _BEFORE_ID, one.id.encode(), _CREATED) for one in documents
        ]
        return Bulk(len(documents), b"".join(lines), _answer(b"".join(items)), lambda: list(documents))


def join_bulks(bulks: Sequence[Bulk]) -> Bulk:
    """Return one bulk with the documents of all bulks, in their order. None of them may have documents with versions."""
    items = b",".join(one.created.removeprefix(_ANSWER_START).removesuffix(_ANSWER_END) for one in bulks)
    return Bulk(
        sum(one.count for one in bulks),
        b"".join(one.body for one in bulks),
        _ANSWER_START + items + _ANSWER_END,
        lambda: [document for one in bulks for document in one.read()],
    )


def cut_bulks(columns: DocumentColumns, documents_max: int, bytes_max: int) -> Iterator[Bulk]:
    """Yield bulks of at most `documents_max` documents and `bytes_max` bytes. A larger document is alone in its bulk.

    No row may have an entry in `columns.problems`: `sorted_out` removes such rows.
    """
    indices, ids = columns.indices(), columns.ids.cast(pa.binary())
    actions: list[pa.BinaryArray | bytes] = [_ACTION]
    if columns.versions is not None:
        actions = [_VERSIONED, columns.versions.cast(pa.string()).cast(pa.binary()), _VERSIONED_END]
    lines = join_texts([*actions, indices, _WRITE_BEFORE_ID, ids, b'"}}\n', *columns.pieces, b"\n"])
    items = join_texts([_ACTION, indices, _BEFORE_ID, ids, b'"', _CREATED])
    ends = text_ends(lines)
    first = 0
    while first < len(columns):
        fits = int(np.searchsorted(ends, ends[first] + bytes_max, side="right")) - 1
        next_ = max(first + 1, min(fits, first + documents_max))
        yield Bulk(
            next_ - first,
            bytes_between(lines, first, next_),
            _answer(bytes_between(items, first, next_)) if columns.versions is None else b"",
            partial(_read, columns, range(first, next_)),
        )
        first = next_


def _action(document: Document) -> bytes:
    return _ACTION if document.version is None else b"%b%d%b" % (_VERSIONED, document.version, _VERSIONED_END)


def _read(columns: DocumentColumns, rows: Sequence[int]) -> list[Document]:
    return [row for row in columns.taken(rows).rows() if isinstance(row, Document)]


def _answer(items: bytes) -> bytes:
    return _ANSWER_START + items.removesuffix(b",") + _ANSWER_END
