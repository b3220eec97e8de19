"""Declarations of records, for formats with sessions (Sparkplug births): stored in the ledger by hash, for every replay.

A source task stores the declarations of a new slice before it reports their hashes to the driver. So the ledger contains each
declaration whose hash is in a slice or a checkpoint.
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
"""Maximum size of the contents that a process holds in addition to those in use."""


class SessionCache:
    """Declarations in one ledger, for one process. Caches them in memory, because a hash always has the same content."""

    def __init__(self, open_ledger: Callable[[], TaskLedger]) -> None:
        self._open_ledger = open_ledger
        self._known: dict[str, dict[str, Any]] = {}
        """Format -> its cache of decoded declarations."""
        self._texts: dict[str, str] = {}
        """Hash -> declaration, for those that were read last."""
        self._kept: set[str] = set()
        """Hashes that are in the ledger."""

    def unpack(self, form: Format, packed: str) -> SessionState:
        """Return the state from its `SessionState.packed`. Raises LedgerUnavailable; NotFound if a declaration is missing."""
        return form.unpack_sessions([packed], self._load, self._known.setdefault(form.name, {}))

    def keep(self, sessions: Iterable[SessionState]) -> None:
        """Store the declarations of these states in the ledger. Idempotent. Raises LedgerUnavailable."""
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
                    f"the ledger lacks row {lacking[0]} of table decoder_contents, the declarations of a birth record. Slices "
                    "whose records depend on it can't be read; restore the row from a backup of the ledger"
                )
            if sum(map(len, self._texts.values())) > CHARACTERS_MAX:
                self._texts.clear()
            self._texts |= found
            self._kept |= found.keys()
            texts |= found
        return texts


def sessions_of_partitions(ledger: SchemaReader, form: Format, packed: Iterable[str]) -> SessionState:
    """Return all declarations of some partitions. `packed`: `SessionState.packed` of each. Raises LedgerUnavailable."""
    return form.unpack_sessions([*packed], ledger.contents, {})


_kept: dict[str, SessionCache] = {}


def sessions_of_process(ledger_url: str) -> SessionCache:
    """This process's sessions: Python workers are reused."""
    if ledger_url not in _kept:
        _kept[ledger_url] = SessionCache(lambda: open_ledger(ledger_url))
    return _kept[ledger_url]
