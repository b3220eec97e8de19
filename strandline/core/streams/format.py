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
"""Remedy in messages, for a change that a stream can't have."""


class StreamDocument(Protocol):
    """Fields of a `StreamSpec` that formats use. A protocol, because the module of `StreamSpec` imports this one."""

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
    """Field of the options that receives the content."""
    is_text: bool
    """True if the content is text, False if the field receives it in base64."""


class ValueRows(NamedTuple):
    """Delimiter and columns of records that are rows of values without names, as in CSV."""

    delimiter: str
    columns: tuple[str, ...]


class Framing(NamedTuple):
    """Rules by which gateways find the records in a body."""

    split_lines: Callable[[bytes], list[bytes] | None] | None = None
    """See `StreamFormat.split_lines`. None if each line is a record."""
    takes_bare_json: bool = False
    """See `StreamFormat.takes_bare_json`."""
    is_of_arrays: bool = False
    """True if a record is an array of values."""
    charset: str = ""
    """Charset of bodies whose lines and elements can't be found in their bytes. Empty for all others."""


PLAIN = Framing()
"""Framing of most formats."""


class StreamFormat:
    """One format of records, as documents and gateways use it. An instance is a constant and has no state."""

    name: str
    """Value of `format` in the document of a stream."""
    unusable: StrandlineError | None = None
    """Reason why records of the format can't be framed or read here. None if they can."""
    module: str | None = None
    """Module of an optional package that reads the records (`core/extras.py`). None if no such package is needed."""

    # The document

    options_description = ""
    """What the options are, for the schema of documents and for messages."""
    requires_options = False
    """True if the document must have the options."""
    files: Mapping[str, NamedFile] = {}
    """Field of the options that names a file -> its use. Readers of documents for a user replace it by the content."""
    paths: Literal["members", "columns", "value"] = "members"
    """Meaning of the path of a field: a member of the record, one of its columns, or with `$` the whole record as one value."""
    is_json = False
    """True if a record is a JSON object or an array. Gateways read the key from it, and other rows can become such records."""
    is_json_text = False
    """True if a record is text in JSON. Then a file can also be one array of records."""
    explodes = False
    """True if the elements of an array in a record can be rows."""
    has_nested = False
    """True if fields can be arrays and structs."""
    keeps_rest = False
    """True if a field can contain the members that have no other field."""
    has_schema = False
    """True if records are read with a schema, which names all their members."""
    skips_tombstones = False
    """True if a record without a value contains nothing."""
    keeps_sessions = False
    """True if the meaning of a record depends on earlier records of its partition."""

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
        """Yield reasons why a lookup can't follow a stream of this format. `deletes`: True if the lookup has `deleted_if`."""
        return iter(())

    # Gateways and files

    content_type = b"application/octet-stream"
    """Content type of one record."""
    sender = "HTTP"
    """Usual protocol of the records, for messages."""
    untyped_body: Literal["json", "lines", "whole"] = "whole"
    """Reading of a body without a content type: as JSON, one record per line, or as one record."""
    is_line = False
    """True if no record contains the end of a line. Then files can contain one record a line."""
    has_line_files = False
    """True if local runs read files with one record per line, although a record can contain the end of a line."""
    takes_bare_json = False
    """True if a JSON body that isn't an array is one record of any type."""

    def split_lines(self, body: bytes) -> list[bytes] | None:
        r"""Return the records of a body with one record per line, if a line can end not only at each `\\n`. None if it can't."""
        return None

    def value_rows(self, stream: StreamDocument) -> ValueRows | None:
        """Return the delimiter and the columns, if a record is a row of values without names, as in CSV. None for other
        records.
        """
        return None

    def framing(self) -> Framing:
        """Return the rules by which gateways find the records in a body. Raises StrandlineError if the format can't be used."""
        if self.unusable is not None:
            raise self.unusable
        has_own_lines = type(self).split_lines is not StreamFormat.split_lines
        return Framing(self.split_lines if has_own_lines else None, self.takes_bare_json)


class UnusableFormat(StreamFormat):
    """A format of a package that isn't installed or can't be used. Documents that were stored with it can still be read."""

    def __init__(self, name: str, error: StrandlineError) -> None:
        self.name = name
        self.unusable = error
