"""The contract of a record format: the part that documents and gateways use.

`processing/formats/format.py` has the other part, which reads records, and describes how a format is added. This part is in
`core`, because packages below `processing` use it. No code outside the folder of a format tests which format it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from strandline.core.documents import Path
from strandline.core.errors import StrandlineError

if TYPE_CHECKING:  # every Python worker imports this module, but not pydantic
    from strandline.core.document_model import DocumentModel
    from strandline.core.streams.entrances import MqttSpec
    from strandline.core.streams.fields import FieldSpec

ANOTHER_STREAM = "register a stream of another name for it, and a job that reads that one"
"""Remedy for a change that a stream can't have, for messages."""


class StreamDocument(Protocol):
    """The document of a stream, as formats use it: a `StreamSpec`, which imports this module."""

    @property
    def stream(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def partitions(self) -> int: ...
    @property
    def fields(self) -> Mapping[str, FieldSpec]: ...
    @property
    def key(self) -> str | None: ...
    @property
    def mqtt(self) -> MqttSpec | None: ...
    @property
    def explode_path(self) -> str | None: ...
    @property
    def options(self) -> Any: ...


class NamedFile(NamedTuple):
    """A file that the options of a format can name. Its content is written into the document."""

    field: str
    """Field of the options that gets the content."""
    is_text: bool
    """True if the content is text, False if the field gets it in base64."""


class ValueRows(NamedTuple):
    """Form of records that are rows of values."""

    delimiter: str
    columns: tuple[str, ...]


class Framing(NamedTuple):
    """How gateways find the records in a body."""

    split_lines: Callable[[bytes], list[bytes] | None] | None = None
    """See `StreamFormat.split_lines`. None if each line is a record."""
    takes_bare_json: bool = False
    """See `StreamFormat.takes_bare_json`."""
    is_of_arrays: bool = False
    """True if a record is an array of values."""


PLAIN = Framing()
"""Framing of most formats."""


class StreamFormat:
    """One format of records, as documents and gateways use it. An instance is a constant and has no state."""

    name: str
    """Value of `format` in the document of a stream."""
    unusable: StrandlineError | None = None
    """Reason why records of the format can't be framed or read here. None if they can."""

    # The document

    options_description = ""
    """What the options are, for the schema of documents and for messages."""
    requires_options = False
    """True if the document must have the options."""
    files: Mapping[str, NamedFile] = {}
    """Field of the options that names a file -> its use. Whoever reads documents for a user replaces it by the content."""
    paths: Literal["members", "columns", "value"] = "members"
    """What the path of a field can name: members of the record, its columns, or with `$` the whole record as one value."""
    is_json = False
    """True if a record is a JSON object or an array. Gateways look for the key in it, and other rows can become such records."""
    is_json_text = False
    """True if a record is text in JSON. Then a file can also be one array of records."""
    explodes = False
    """True if the elements of an array in a record can be rows."""
    has_nested = False
    """True if fields can be arrays and structs."""
    keeps_rest = False
    """True if a field can contain the members that no other field has."""
    has_schema = False
    """True if records are read by a schema, which names all their members."""
    skips_tombstones = False
    """True if a record without a value contains nothing."""
    keeps_sessions = False
    """True if what a record means depends on earlier records of its partition."""

    def options(self) -> type[DocumentModel] | None:
        """Return the model of the options. The document has them in the field with the name of the format; those of the format
        of a package are in `format_options`. None if the format has no options."""
        return None

    def problems(self, stream: StreamDocument) -> Iterator[tuple[Path, str]]:
        """Yield the problems that only streams of this format have, each with its path in the document and the remedy."""
        return iter(())

    def refused_changes(self, old: StreamDocument, new: StreamDocument) -> Iterator[str]:
        """Yield reasons why a stream of this format can't be changed while jobs read it. See `ANOTHER_STREAM`."""
        return iter(())

    def problems_of_lookup(self, stream: StreamDocument, *, deletes: bool) -> Iterator[str]:
        """Yield reasons why a lookup can't follow a stream of this format. `deletes`: the lookup says which rows are deleted."""
        return iter(())

    # Gateways and files

    content_type = b"application/octet-stream"
    """Content type of one record."""
    sender = "HTTP"
    """How records are usually sent, for messages."""
    untyped_body: Literal["json", "lines", "whole"] = "whole"
    """How a body without a content type contains records: as JSON, one a line, or as one record."""
    is_line = False
    """True if no record contains the end of a line. Then files can contain one record a line."""
    has_line_files = False
    """True if the desk reads files with one record a line, although a record can contain the end of a line."""
    takes_bare_json = False
    """True if a body of JSON that is no array is one record, whatever it is."""

    def split_lines(self, body: bytes) -> list[bytes] | None:
        """Return the records of a body with one record a line, if a line can also end elsewhere than at each `\\n`. None if it
        can't."""
        return None

    def value_rows(self, stream: StreamDocument) -> ValueRows | None:
        """Return the form of records that are rows of values. None if records aren't."""
        return None

    def framing(self) -> Framing:
        """Return how gateways find the records in a body. Raises StrandlineError if the format can't be used."""
        if self.unusable is not None:
            raise self.unusable
        has_own_lines = type(self).split_lines is not StreamFormat.split_lines
        return Framing(self.split_lines if has_own_lines else None, self.takes_bare_json)


class UnusableFormat(StreamFormat):
    """A format of a package that isn't installed or can't be used. Documents that were stored with it can still be read."""

    def __init__(self, name: str, error: StrandlineError) -> None:
        self.name = name
        self.unusable = error
