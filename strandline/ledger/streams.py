"""Streams in the ledger: their documents, versions, and topics."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from strandline.core.errors import Conflict, InvalidDocument, NotFound
from strandline.ledger.models import (
    stream_versions,
    streams,
)
from strandline.ledger.part import Part
from strandline.ledger.states import (
    StreamRow,
)

_ENTRANCES_LOCK_KEY = 0x5374_7261_6E67


class StreamReader(Part):
    """Reads the registered streams."""

    def stream(self, name: str) -> StreamRow:
        """Return the row of a stream. Raises NotFound if it isn't registered."""
        with self._database.reading(f"read stream {name}") as connection:
            return read_stream(connection, name)

    def streams(self, names: Collection[str] | None = None) -> list[StreamRow]:
        """Return all streams, by name, or those of `names` that exist."""
        wanted = sa.select(streams).order_by(streams.c.name)
        if names is not None:
            wanted = wanted.where(streams.c.name.in_(names))
        with self._database.reading("list the streams") as connection:
            rows = connection.execute(wanted)
            return [StreamRow(*row) for row in rows]

    def stream_version(self, name: str) -> int:
        """Return the number of the stream's current version. Raises NotFound."""
        found = self.current_versions([name])
        if name not in found:
            raise _no_stream(name)
        return found[name]

    def current_versions(self, names: Collection[str]) -> dict[str, int]:
        """Return the number of the current version of each of these streams. A stream that doesn't exist is left out."""
        wanted = sa.select(streams.c.name, streams.c.version).where(streams.c.name.in_(names))
        with self._database.reading(f"read the versions of {len(names)} streams") as connection:
            return {name: int(version) for name, version in connection.execute(wanted)}

    def stream_documents(self, name: str) -> dict[int, dict[str, Any]]:
        """Return version -> document of all versions of the stream, the oldest first. Raises NotFound."""
        with self._database.reading(f"read the versions of stream {name}") as connection:
            read_stream(connection, name)
            kept = sa.select(stream_versions.c.version, stream_versions.c.document)
            found = connection.execute(kept.where(stream_versions.c.stream == name).order_by(stream_versions.c.version))
            return {number: document for number, document in found}


class Streams(Part):
    """Registers streams. Each method is one transaction."""

    def put_stream(
        self, name: str, document: dict[str, Any], base: int | None = None, together: Collection[str] = ()
    ) -> StreamRow:
        """Register a stream, or add a version; each version is kept. The same document again changes nothing.

        Raises Conflict if the current version of the stream isn't `base`, or if another stream has one of its endpoints
        (an MQTT topic filter, or the port of a gateway).

        Args: base: Version that the document was checked against, 0 for none. together: All streams of the application.
        This stream can take over an endpoint from their current documents.
        """
        with self._database.writing(f"register stream {name}") as connection:
            known = connection.execute(sa.select(streams).where(streams.c.name == name).with_for_update()).first()
            if known is not None and known.document == document:
                return StreamRow(*known)
            present = 0 if known is None else known.version
            if base is not None and base != present:
                raise Conflict(
                    f"Stream {name} has just got version {present} by another application; apply the documents again."
                )
            self._refuse_shared_entrances(connection, name, document, together)
            now_ms = self._clock_ms()
            if known is None:
                found = StreamRow(name, document, version=1, topic_id=None, created_ms=now_ms)
                connection.execute(sa.insert(streams).values(vars(found)))
            else:
                changed = sa.update(streams).where(streams.c.name == name)
                connection.execute(changed.values(document=document, version=present + 1))
            row = read_stream(connection, name)
            kept = {"stream": name, "version": row.version, "document": document, "applied_ms": now_ms}
            connection.execute(sa.insert(stream_versions).values(kept))
            return row

    def _refuse_shared_entrances(
        self, connection: sa.Connection, name: str, document: dict[str, Any], together: Collection[str]
    ) -> None:
        entrances = _entrances(document)
        if not entrances:
            return
        # If two streams are about to get the same entrance, neither transaction would see the other's row.
        self._database.hold_lock(connection, _ENTRANCES_LOCK_KEY)
        others = sa.select(streams.c.name, streams.c.document).where(streams.c.name.not_in({name, *together}))
        for owner, other in connection.execute(others.order_by(streams.c.name)):
            if shared := sorted(entrances & _entrances(other)):
                raise Conflict(f"{shared[0]} belongs to stream {owner} already; choose another")

    def set_topic_id(self, name: str, topic_id: str) -> None:
        """Record Kafka's id of the stream's topic. Raises NotFound."""
        with self._database.writing(f"note the topic of stream {name}") as connection:
            changed = connection.execute(sa.update(streams).where(streams.c.name == name).values(topic_id=topic_id))
            if changed.rowcount == 0:
                raise _no_stream(name)


def read_stream(connection: sa.Connection, name: str) -> StreamRow:
    row = connection.execute(sa.select(streams).where(streams.c.name == name)).first()
    if row is None:
        raise _no_stream(name)
    return StreamRow(*row)


def hold_streams(connection: sa.Connection, names: Collection[str]) -> None:
    """Prevent the deletion of these streams until the transaction ends, which records a job that needs them.

    Raises Conflict if one was deleted.
    """
    wanted = sa.select(streams.c.name).where(streams.c.name.in_(names)).order_by(streams.c.name)
    there = set(connection.execute(wanted.with_for_update(read=True, key_share=True)).scalars())
    if gone := sorted(set(names) - there):
        raise Conflict(f"Stream {gone[0]} was deleted a moment ago; apply the documents again.")


def _entrances(document: dict[str, Any]) -> set[str]:
    """Return the endpoints of the stream that only one stream can have: MQTT topic filters and ports of gateways.

    Empty for a document that a newer release wrote: that release checks it.
    """
    # Importing it takes a quarter of a second, and most users of the ledger register no stream.
    from strandline.core.streams.stream import StreamSpec

    with contextlib.suppress(InvalidDocument):
        return {entrance for _, entrance in StreamSpec.from_document(document).entrances()}
    return set()


def _no_stream(name: str) -> NotFound:
    return NotFound(f"There is no stream {name}; register it with `strandline apply FILE`.")
