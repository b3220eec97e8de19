"""The contract of a record format: the part that reads records. The part for documents and gateways is `core/streams/format.py`.

Each format has a folder in this package:

* `format.py` contains one instance, `FORMAT`. Gateways and every Python worker import it. So it imports its other modules, numpy,
  and pyarrow inside the methods.
* `document.py`: the model of the options in the document of a stream.
* `reader.py`: the class that converts records to JSON objects. It imports `columns.py` if the format has a fast path. Workers
  import it before they are forked.
* `columns.py`: the fast path, which reads plain records as columns.
* `sample.py`: proposes the document of a stream for a sample.
* `page.md`: the page of the docs.

The table of the formats is in `core/streams/format_registry.py`. A package provides an instance of `Format` as an entry point of
the group `strandline.formats`.

The outcome of a record must be a function of its bytes and of its source (topic, query, headers). It must not depend on
neighbours, or on how records are divided into calls. The methods that choose a reader are called once for each task, not for
each record.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, runtime_checkable

from strandline.core.errors import FunctionUnusable
from strandline.core.json_paths import JsonPath
from strandline.core.streams.format import StreamDocument, StreamFormat
from strandline.core.streams.format_registry import form_of, package_of

if TYPE_CHECKING:
    from strandline.processing.formats.columns.exploded_columns import ExplodedColumns
    from strandline.processing.formats.columns.read_columns import ColumnReader
    from strandline.processing.formats.inference.sample import Proposed, Sample
    from strandline.processing.formats.json_rows import Rows
    from strandline.processing.formats.record_fields import JsonText, RecordField
    from strandline.processing.formats.source_fields import Members, SourceFields
    from strandline.processing.formats.with_schema.registered_schemas import RegisteredSchemas


class FormatReader(Protocol):
    """Reads the records of one stream."""

    def objects(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> list[JsonText]:
        """Return a JSON object with the fields of each value, or a `Rejection`; None for None. `sources`: a header of each
        record, or None. The outcome of a value must depend only on the value and its source."""


@runtime_checkable
class ArrayReader(FormatReader, Protocol):
    """Reads records that can be exploded, and that aren't JSON."""

    def letters(self, value: bytes) -> Callable[[int], bytes]:
        """Read the record once, and return a function: index of an element -> the record with an array of only this element."""


class SessionState(Protocol):
    """The declarations in the records of a partition so far. They are stored with slices."""

    def packed(self) -> str:
        """Return the state as a string, with hashes in place of long contents. Empty if nothing is declared."""

    def contents(self) -> dict[str, str]:
        """Return hash -> content, for all hashes in `packed`. The ledger stores the contents."""


class SessionReader(Protocol):
    """Reads the records of one partition in their order."""

    @property
    def sessions(self) -> SessionState:
        """State after the records that were read."""

    def begin(self, sessions: Any) -> None:
        """Continue with other records. `sessions`: state before them, from `Format.unpack_sessions`. The reader changes it."""

    def parts(self, values: Sequence[bytes | None], sources: Sequence[bytes | None]) -> Iterator[Rows]:
        """Yield the rows of the next records, in parts of whole records."""

    def letter_of_row(self, row: bytes) -> bytes:
        """Return the value of the dead letter of a row."""

    def letters(self, value: bytes) -> Callable[[int], bytes]:
        """Return a function: index of an element without a row -> value of its dead letter."""


@dataclass(frozen=True)
class ReaderRequest:
    """Request for a reader of one stream."""

    fields: tuple[RecordField, ...]
    """Fields of the stream, as `Format.fields` returns them."""
    options: Any
    """Options of the stream, as `Format.read_options` returns them."""
    explode: JsonPath | None
    """Path of the array whose elements are rows. None if there is none."""
    source_fields: SourceFields
    """Fields that the sources of records fill."""
    schemas: RegisteredSchemas | None = None
    """Schemas of the registry. None unless `Format.uses_registry` is true."""


class Format(StreamFormat):
    """One format of records. An instance is a constant, is used in every process, and has no state."""

    # Reading

    rows_at: JsonPath | None = None
    """Path of the array whose elements are rows, if each stream of the format has one."""
    fills_in_sources = False
    """True if the reader itself adds the fields that topic, query, and headers fill."""
    columns_follow_paths = False
    """True if the fast path reads fields with a path."""

    def fields(self, fields: tuple[RecordField, ...]) -> tuple[RecordField, ...]:
        """Return the fields of a stream, each with the path of its value in the objects of the reader."""
        return fields

    def read_options(self, stream: StreamDocument) -> Hashable:
        """Return the parts of the document that the reader needs in addition to the fields. Pickled."""
        return None

    def uses_registry(self, options: Any) -> bool:
        """Return True if each record names its schema in the schema registry."""
        return False

    def reader(self, request: ReaderRequest) -> FormatReader | None:
        """Return the reader of a stream. None if records are the JSON objects. The reader defines the meaning of a record; the
        fast path must return the same.

        A reader that is also an `ArrayReader` returns the dead letters of exploded records.
        """
        return None

    def columns(self, request: ReaderRequest, reader: FormatReader | None) -> ColumnReader | None:
        """Return the fast path, which reads plain records as columns, and leaves other records to the reader. None if there is
        none."""
        from strandline.processing.formats.columns.read_columns import ColumnReader

        return reader if isinstance(reader, ColumnReader) else None

    def element_columns(self, fields: Sequence[RecordField], array: JsonPath) -> ExplodedColumns | None:
        """Return the fast path for records that are exploded. None if there is none."""
        return None

    def session_reader(
        self,
        fields: Sequence[RecordField],
        texts: Callable[[Sequence[JsonText], Sequence[bytes | None]], Sequence[JsonText]],
        members_of: Callable[[bytes | None], Members],
    ) -> SessionReader:
        """Return the reader of a stream, if `keeps_sessions` is true.

        - `texts`: returns the flat rows for rows and the sources of their records.
        - `members_of`: returns the fields that a source fills.
        """
        raise NotImplementedError

    def unpack_sessions(
        self,
        packed: Sequence[str],
        load: Callable[[Iterable[str]], Mapping[str, str]],
        known: dict[str, Any],
    ) -> SessionState:
        """Return the common state of these partitions, if `keeps_sessions` is true.

        - `packed`: `SessionState.packed` of each partition.
        - `load`: returns the contents of hashes.
        - `known`: contents that the format keeps in memory. The format must bound their size.
        """
        raise NotImplementedError

    # A document from a sample

    sample_rank = 50
    """Formats with a lower rank examine a sample first. Any text is a bare value, so that format is last (90)."""

    def propose(self, name: str, sample: Sample) -> Proposed | None:
        """Return a document for the stream `name`, and the records of the sample. None if the sample isn't of this format.

        Raises NoSampleError if it is of this format, but no document can be proposed.
        """
        return None

    def propose_for_records(self, name: str, records: Sequence[bytes]) -> Proposed | None:
        """Return a document for records of a topic that aren't text. None if most of them aren't of this format."""
        return None

    # Files in local runs

    file_suffix = ""
    """Suffix of files that belong to the format, and don't have one record per line. Empty if there are none."""
    file_name = ""
    """Name of such a file, for messages."""

    def file_records(self, file: BinaryIO, options: Any, name: str) -> Iterator[bytes]:
        """Yield each record of such a file as it would be sent. Raises PermanentError. `name`: name of the file."""
        raise NotImplementedError


def format_of(name: str) -> Format:
    """Return the format with this name. Raises FunctionUnusable if its package isn't installed or can't be used."""
    form = form_of(name)
    if form.unusable is not None:
        raise form.unusable
    if not isinstance(form, Format):
        raise FunctionUnusable(
            f"the format {name} of {package_of(name)} is a {type(form).__name__}, not a Format; install a release of the package "
            "for this release of Strandline"
        )
    return form
