"""The store of results and the stream of dead letters of one execution, which notice each write that must not happen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from strandline.processing.emission.dead_letters import DeadLetter
from strandline.processing.emission.keyed_task import DeadLetterTarget
from strandline.results.document import Document, DocumentShape
from strandline.results.writer import WriteReport
from tests.simulation.chance import Chance

ORIGIN = b'"strandline":'
"""The last field of a document, which says which slice emitted it."""

DocumentKey = tuple[str, str]
"""Index and id."""


class Written(NamedTuple):
    """A document as it was written."""

    emission: int
    source: bytes

    @property
    def body(self) -> bytes:
        """The document without its origin."""
        return self.source[: self.source.rindex(ORIGIN)]


class Letter(NamedTuple):
    emission: int
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]

    @property
    def reason(self) -> str:
        return dict(self.headers)["reason"].decode()


@dataclass
class Store:
    """All that was ever written. A document has versions only if late records revise it; otherwise its version is 0."""

    written: dict[tuple[DocumentKey, int], Written] = field(default_factory=dict)
    newest: dict[DocumentKey, int] = field(default_factory=dict)
    """Version that a search finds."""
    letters: dict[str, Letter] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    emission: int = 0
    """The slice that is processed."""
    _now: set[object] = field(default_factory=set)
    """What the present attempt has written."""

    def begin(self, emission: int) -> None:
        """A slice begins, perhaps again."""
        self.emission = emission
        self._now.clear()

    def write(self, one: Document) -> None:
        key, version = (one.index, one.id), one.version or 0
        new = Written(self.emission, one.source)
        held = self.written.get((key, version))
        if (key, version) in self._now:
            self.findings.append(f"repeated: slice {self.emission} writes version {version} of {key} twice")
        elif held is not None and held != new:
            self.findings.append(f"repeated: version {version} of {key} is {held}, and then {new}")
        elif held is None and version < self.newest.get(key, 0):
            self.findings.append(f"wrong: version {version} of {key} comes after {self.newest[key]}")
        self._now.add((key, version))
        self.written[key, version] = new
        self.newest[key] = max(version, self.newest.get(key, 0))

    def write_letters(self, letters: Iterable[DeadLetter]) -> int:
        count = 0
        for one in letters:
            count += 1
            new, held = Letter(self.emission, one.value, one.headers), self.letters.get(one.identity)
            if one.identity in self._now:
                self.findings.append(f"repeated: slice {self.emission} writes the dead letter {one.identity} twice")
            elif held is not None and held != new:
                self.findings.append(f"repeated: the dead letter {one.identity} is {held}, and then {new}")
            self._now.add(one.identity)
            self.letters[one.identity] = new
        return count

    @property
    def results(self) -> dict[DocumentKey, Written]:
        """The documents that a search finds."""
        return {key: self.written[key, version] for key, version in self.newest.items()}

    def up_to(self, emission: int, chance: Chance, share: float) -> Store:
        """Return the store as it was after this slice, and with a share of what the next slice writes."""

        def is_there(number: int) -> bool:
            return number <= emission or (number == emission + 1 and chance.random() < share)

        found = Store()
        for (key, version), one in self.written.items():
            if is_there(one.emission):
                found.written[key, version] = one
                found.newest[key] = max(version, found.newest.get(key, 0))
        found.letters = {identity: one for identity, one in self.letters.items() if is_there(one.emission)}
        return found


@dataclass(frozen=True)
class StoreWriterOfRun:
    """A writer of an emission, which makes its documents as that of Elasticsearch does."""

    shape: DocumentShape
    store: Store = field(compare=False)

    def prepare(self, next_end_ms: int | None) -> None:
        raise AssertionError("a worker writes")

    def write_batches(
        self, batches: Iterable[pa.RecordBatch], epoch: int, emission: int, slice_digest: str = ""
    ) -> WriteReport:
        count = 0
        for batch in batches:
            for one in self.shape.documents(batch, epoch, emission, slice_digest):
                assert isinstance(one, Document), one
                self.store.write(one)
                count += 1
        return WriteReport(created=count)


class _Letters:
    def __init__(self, store: Store) -> None:
        self._store = store

    def write(self, letters: Iterable[DeadLetter], written_before: object) -> int:
        return self._store.write_letters(letters)


@dataclass(frozen=True)
class LettersOfRun(DeadLetterTarget):
    """Dead letters of rejected records, into the store of the run."""

    store: Store = field(kw_only=True, compare=False)

    def writer(self, bucket: int) -> _Letters:  # type: ignore[override]  # as much of it as a task uses
        return _Letters(self.store)


def different(what: str, wanted: dict, found: dict, shown: int = 3) -> Sequence[str]:  # type: ignore[type-arg]
    """Return how two mappings differ."""
    keys = [key for key in [*wanted, *(found.keys() - wanted.keys())] if wanted.get(key) != found.get(key)]
    return [
        f"{'lost' if key not in found else 'unexpected' if key not in wanted else 'wrong'}: {what} {key} is "
        f"{found.get(key)}, expected {wanted.get(key)}"
        for key in keys[:shown]
    ]
