"""The contract of a sink. Documents, checks, runs, the audit, and the front ends use a sink only by it.

Each sink has a folder in this package: `sink.py` contains one instance, and `page.md` is the page of the docs. The table of the
sinks is in `registry`. A package provides an instance as an entry point of the group `strandline.sinks`. No code outside the
folder of a sink tests which sink it has.

Every worker imports this module and the modules with the instances. Therefore they import their writers, and pydantic, inside the
methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from strandline.core.documents import Path
from strandline.results.index_settings import INDEX_SETTINGS_DEFAULT, IndexSettings
from strandline.results.names import OWN_PREFIX

if TYPE_CHECKING:
    from strandline.core.settings import Settings
    from strandline.results.document import DocumentShape
    from strandline.results.writer import StoreWriter


@dataclass(frozen=True)
class SinkRequest:
    """Request for a writer of one emission."""

    name: str
    """Name in the document, for example a path or a table. Without the name of the sink, if a package provides it."""
    options: dict[str, str | int | float | bool]
    """Options in the document of a sink of a package. Empty if there are none. Only the types of the values are checked."""
    shape: DocumentShape
    """Makes ids and documents from rows."""
    settings: Settings
    """Settings of the process. They contain passwords, so a writer must not keep them: it is pickled."""


@dataclass(frozen=True)
class EmittedFields:
    """Fields and inputs of an emission, for the checks of a document."""

    fields: tuple[tuple[str, Path], ...]
    """Name of each field that the document of the step names, and its path in the step."""
    has_windows: bool
    """True for results of windows and joins, False for records."""
    inputs: frozenset[str]
    """Streams that the pipeline reads."""
    has_several_streams: bool
    """True if records of another stream than the pipeline's first one are emitted."""
    no_updates: str = ""
    """Reason why open windows can't be shown. Empty if they can."""


@dataclass(frozen=True)
class ResultsRequest:
    """Request for the results that a sink contains, for an audit."""

    name: str
    """Name of the emission, as in `SinkRequest`."""
    job: str
    stages: tuple[str, ...]
    """Stages that emit to the sink. Several versions of a job can have different names for one stage."""
    types: Mapping[str, str]
    """Column -> type, as in the schema of a stream. Contains the columns of all versions."""
    after_ms: int | None
    """Exclusive lower bound of the time of a result (`typed_rows.TIME`). None if there is no bound."""
    up_to_ms: int | None
    """Inclusive upper bound. None if there is no bound."""
    is_unbounded: bool
    """True if rows without a time must be returned too."""
    emission_first: int
    """Emissions before this one needn't be returned."""


@dataclass(frozen=True)
class StoredRows:
    """Rows of a sink."""

    position: str
    """Container of the rows: what `Sink.position` returns for them, and perhaps a slash and more, for example a file."""
    rows: Sequence[Mapping[str, Any]]
    """Column -> value, with the columns of `typed_rows`. A value is a Python value, or its form in the JSON document. That of
    `typed_rows.TIME` must be a `datetime`, in UTC if it has no time zone, or None."""


@dataclass(frozen=True)
class StoredFile:
    """A file that was read, or that should be there. Not for sinks without files."""

    path: str
    day: int | None
    """Days since 1970 of the results in it. None if unknown. Files are removed by whole days: if no file of a day is there, the
    audit counts its results as `removed`. Without days, results of deleted files are always missing."""
    is_there: bool
    problem: str = ""
    """Reason why the results can't be read. Empty if they were read."""


class StoredPart(Protocol):
    """Part of the results in a sink, of a bounded size. Pickles."""

    @property
    def rows(self) -> int:
        """Approximate number of rows."""

    def read(self) -> Iterator[StoredRows | StoredFile]:
        """Yield the rows and files. Raises SinkUnavailable."""


class SinkFinding(NamedTuple):
    """Finding of `strandline doctor` about the server of a sink."""

    message: str
    remedy: str = ""
    """Empty if the sink can be written."""


class Sink:
    """One kind of sink. Without state.

    The attributes before `is_stream`, and the methods up to `problems`, describe the field of `emit`. All sinks of packages have
    the field `sink`, so Strandline doesn't use these attributes and methods of a package.
    """

    description = ""
    """Description of the field."""
    named = "name"
    """Field of the long form that contains the name."""
    has_short_form = False
    """True if the document can contain only the name: `{elasticsearch: NAME}`."""
    options_elsewhere = ""
    """Message for options in SQL, if the sink has none there."""
    store_prefix = ""
    """Prefix of the name in reports of an audit. Empty if the name alone is unique."""
    stored_word = ""
    """First word of the keys of `WriteReport.stored`. Empty if a later start can't count the results."""

    is_stream = False
    """True if results are records of a stream of the log. The engine writes them itself, in transactions. False in packages."""
    has_generations = False
    """True if a backfill and a reset can write results next to existing ones, and switch to them by an alias. False in
    packages."""
    merges_slices = False
    """True if the results of several slices can be written as one emission."""

    container = "the sink"
    """Words for the container of one result, in differences that an audit reports."""
    is_compared = False
    """True if the audit compares the results. Then `result_parts` must be implemented."""
    keeps_other_results = False
    """True if results of earlier slices than the compared ones can be in the sink, which the audit must ignore."""
    counts_slices = False
    """True if a slice is complete when the sink contains any of its results."""

    subject = ""
    """Subject of the findings of `examine`. The doctor prints it before each message."""

    @property
    def is_elsewhere(self) -> bool:
        """True if results are neither documents of an index nor records of a stream."""
        return not (self.is_stream or self.has_generations)

    def document(self) -> Any:
        """Return the type of the field of `emit`: a model, or an annotated string."""
        raise NotImplementedError

    def emission_name(self, value: Any) -> str:
        """Return the name of the emission. `value`: field of the document."""
        return value if isinstance(value, str) else str(getattr(value, self.named))

    def index_settings(self, value: Any) -> IndexSettings:
        """Return the settings of the indices."""
        return INDEX_SETTINGS_DEFAULT

    def options(self, value: Any) -> str:
        """Return the options for the writer, as JSON. Empty if there are none."""
        return ""

    def problems_of_document(self, value: Any) -> Iterator[tuple[Path, str]]:
        """Yield problems of the field alone, each with its path in the field. Models report their own."""
        return iter(())

    def problems(self, value: Any, emitted: EmittedFields, path: Path) -> Iterator[tuple[Path, str]]:
        """Yield problems of the emission, each with its path in the step and the remedy.

        Args: value: Field of the document. path: Path of the field in the step.
        """
        return iter(())

    def writer(self, request: SinkRequest) -> StoreWriter:
        """Return the writer of one emission, in the driver. Raises InvalidSettings."""
        raise NotImplementedError

    def emissions_from(
        self, settings: Settings, job: str, stage: str, name: str, first: int
    ) -> Sequence[tuple[int, str]] | None:
        """Return (emission, digest of its slice) of emissions in the sink: at least the newest one, if it is `first` or later.

        A start compares each returned emission with the ledger. The newest one suffices to find an emission after the ledger's
        last slice. More of them also show slices that were planned again since.
        None if the sink can't be queried. Then another version can take over a slice only if it emitted no results.
        Raises SinkUnavailable, InvalidSettings.
        """
        return None

    def counts(self, settings: Settings, job: str, stored: str, first: int) -> Mapping[int, int] | None:
        """Return emission -> number of results in the sink, from emission `first` on.

        None if they can't be counted, or if the sink was deleted. Raises SinkUnavailable.
        Args: stored: Key of `WriteReport.stored` without `stored_word` and the space. In a package, without `sink USE:`.
        """
        return None

    def result_parts(self, settings: Settings, request: ResultsRequest) -> Sequence[StoredPart] | None:
        """Return the parts of the results, which an audit reads. None if the sink doesn't exist.

        Raises SinkUnavailable, InvalidSettings, and Conflict if the results can't be read as those of a job.
        """
        raise NotImplementedError

    def position(self, index: str, time_ms: int) -> str:
        """Return the container of a computed result, for an audit. See `StoredRows.position`.

        Args: index: Name of the emission in the document, `USE:NAME` for the sink of a package. time_ms: Time of the result.
        """
        return index

    def away(self, settings: Settings, timeout_s: float) -> str | None:
        """Return a name for the server of the sink if the server doesn't respond. None if it responds, or if there is none.

        Must not raise.
        """
        return None

    def has_server(self, settings: Settings) -> bool:
        """Return True if the settings, or the environment, name a server that only this sink uses, even if it doesn't respond.

        `examine` is called only then.
        """
        return False

    def target(self, settings: Settings) -> str:
        """Return the server or directory that `examine` checks, without secrets. Empty if it has no name. For the doctor."""
        return ""

    def examine(self, settings: Settings) -> Iterator[SinkFinding]:
        """Yield the findings about this server. Write to it only under a name of the doctor's own. Raises InvalidSettings."""
        return iter(())


def own_names_problems(emitted: EmittedFields) -> Iterator[tuple[Path, str]]:
    """Yield the problems of a sink whose rows have Strandline's columns next to the fields."""
    for name, _ in emitted.fields:
        if name.lower().startswith(OWN_PREFIX):
            yield ("emit",), f"'{name}' has the prefix of the platform's own columns ({OWN_PREFIX}); rename it"
