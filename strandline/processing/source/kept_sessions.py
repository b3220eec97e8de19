"""What records have declared, for formats that keep sessions: kept in the ledger by its hash, for every replay.

A source task keeps what the records of a new slice declare before it tells the driver, so all that a slice's row or a checkpoint
names is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any

from strandline.core.errors import NotFound
from strandline.ledger.roles import TaskLedger
from strandline.ledger.schemas import SchemaReader
from strandline.processing.formats.format import Format, SessionState
from strandline.processing.source.opened_ledger import open_ledger

CHARACTERS_MAX = 32 << 20
"""Of texts that a process holds beside those that it needs at once."""


class KeptSessions:
    """The kept texts of one ledger, for one process. Keeps in memory what it has read: a hash always has the same text."""

    def __init__(self, open_ledger: Callable[[], TaskLedger]) -> None:
        self._open_ledger = open_ledger
        self._known: dict[str, dict[str, Any]] = {}
        """Format -> what it keeps of contents that it has read."""
        self._texts: dict[str, str] = {}
        """What was read last."""
        self._kept: set[str] = set()
        """Hashes that are in the ledger."""

    def unpack(self, form: Format, packed: str) -> SessionState:
        """The state of which `SessionState.packed` is this. Raises LedgerUnavailable, NotFound."""
        return form.unpack_sessions([packed], self._load, self._known.setdefault(form.name, {}))

    def keep(self, sessions: Iterable[SessionState]) -> None:
        """Keep what these tell by hash. Doing it again changes nothing. Raises LedgerUnavailable."""
        contents: dict[str, str] = {}
        for one in sessions:
            contents |= {key: text for key, text in one.contents().items() if key not in self._kept}
        if contents:
            with closing(self._open_ledger()) as ledger:
                ledger.keep_contents(contents)
            self._kept |= contents.keys()

    def _load(self, hashes: Iterable[str]) -> Mapping[str, str]:
        wanted = set(hashes)
        texts = {one: self._texts[one] for one in wanted & self._texts.keys()}
        if missing := wanted - texts.keys():
            with closing(self._open_ledger()) as ledger:
                found = ledger.contents(missing)
            if lacking := sorted(missing - found.keys()):
                raise NotFound(
                    f"the ledger does not hold what births had declared ({lacking[0]}, table decoder_contents): it was taken "
                    "out, so the slices that begin with it can't be read; take it back from a backup of the ledger"
                )
            if sum(map(len, self._texts.values())) > CHARACTERS_MAX:
                self._texts.clear()
            self._texts |= found
            self._kept |= found.keys()
            texts |= found
        return texts


def sessions_of_partitions(ledger: SchemaReader, form: Format, packed: Iterable[str]) -> SessionState:
    """What these partitions of a stream have declared, together. Raises LedgerUnavailable."""
    return form.unpack_sessions([*packed], ledger.contents, {})


_kept: dict[str, KeptSessions] = {}


def sessions_of_process(ledger_url: str) -> KeptSessions:
    """This process's sessions: Python workers are reused."""
    if ledger_url not in _kept:
        _kept[ledger_url] = KeptSessions(lambda: open_ledger(ledger_url))
    return _kept[ledger_url]
