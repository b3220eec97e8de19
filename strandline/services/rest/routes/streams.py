"""Streams: what is registered, and what the log holds."""

from __future__ import annotations

from fastapi import APIRouter

from strandline.processing.pipelines.result_streams import emitter_of
from strandline.services.rest.dependencies import Control
from strandline.services.rest.views import DeletedStreamView, PartitionView, StreamList, StreamView

router = APIRouter(tags=["streams"])


@router.get("/v1/streams")
def list_streams(control: Control) -> StreamList:
    """All registered streams, by name."""
    return StreamList(streams=control.ledger.streams())


@router.get("/v1/streams/{name}")
def show_stream(control: Control, name: str) -> StreamView:
    """One stream, and what its topic holds now."""
    row = control.ledger.stream(name)
    held = control.log.range(name)
    partitions = [
        PartitionView(partition=partition, offset_first=held.offset_first[partition], offset_next=offset_next)
        for partition, offset_next in held.offset_next.items()
    ]
    return StreamView(
        **vars(row),
        emitted_by=emitter_of(control.ledger, name),
        retention_ms=control.log.retention_ms(name),
        records=sum(one.offset_next - one.offset_first for one in partitions),
        partitions=partitions,
    )


@router.delete("/v1/streams/{name}")
def delete_stream(control: Control, name: str, keep_topic: bool = False) -> DeletedStreamView:
    """Delete a stream that no job reads or emits to, with its topic unless that is to stay. Gateways take nothing for it from
    their next look at the ledger on."""
    control.lives.delete_stream(name, keep_topic=keep_topic)
    return DeletedStreamView(stream=name, topic="kept" if keep_topic else "deleted")
