"""Streams: their registration, and their records in the log."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Query, Request, Response

from strandline.core.document_values import check_name
from strandline.core.documents import document_text
from strandline.core.errors import Conflict
from strandline.core.streams.stream import StreamSpec
from strandline.core.times.durations import format_retention
from strandline.ledger.database import now_ms
from strandline.processing.formats.undeclared import undeclared_fields
from strandline.processing.pipelines.result_streams import emitter_of
from strandline.processing.source.kept_lookups import with_present_tables
from strandline.services.jobs.arrivals import ArrivalQueries
from strandline.services.jobs.devices import DeviceList, Order, chosen_devices
from strandline.services.jobs.record_search import FOUND_MAX, FoundRecords, Wanted
from strandline.services.jobs.samples import SamplePreviewView, pipeline_of, preview_topic, propose_for_topic
from strandline.services.jobs.sending import SendingView, ways_to_send
from strandline.services.jobs.topics import TOPICS_MAX, TopicList, topic_names, topic_views
from strandline.services.rest.dependencies import INTEGER_MAX, Caller, Control, MayReadTopics, require_readable
from strandline.services.rest.guards.token_guard import authorization_of
from strandline.services.rest.kept_answers import NOT_MODIFIED, MaxAge
from strandline.services.rest.routes.documents import DOCUMENTS_BODY, DocumentsBody, PipelineName, Records, Source
from strandline.services.rest.views import (
    AcceptedRecordsView,
    ArrivalList,
    DeletedStreamView,
    DocumentTextView,
    PartitionView,
    ProposalView,
    StreamList,
    StreamView,
    UndeclaredFieldView,
    UndeclaredView,
)

router = APIRouter(tags=["streams"])

_RECORDS_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            content_type: {"schema": {"type": "string", "format": "binary", "description": description}}
            for content_type, description in (
                ("application/json", "A JSON object, or an array of records"),
                ("application/x-ndjson", "One record per line; other content types as at the HTTP gateway"),
                ("application/octet-stream", "One record"),
            )
        },
    }
}
_VALUE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/octet-stream": {
                "schema": {"type": "string", "format": "binary", "description": "Payload of a record"}
            }
        },
    }
}


async def _records_body(request: Request) -> bytes:
    return await request.body()


@router.get("/v1/streams")
def list_streams(control: Control) -> StreamList:
    """Return all registered streams, by name."""
    return StreamList(streams=control.ledger.streams())


@router.get("/v1/arrivals", response_model=ArrivalList, responses=NOT_MODIFIED)
def list_arrivals(request: Request, control: Control, max_age_s: MaxAge = 0) -> Response:
    """Return the newest record of each stream, by partition. A stream without new records may be silent."""

    def compute() -> ArrivalList:
        queries = ArrivalQueries(control.log)
        arrivals = [queries.of(row.name) for row in control.ledger.streams()]
        return ArrivalList(now_ms=now_ms(), arrivals=arrivals)

    return control.kept_arrivals.respond(request, None, max_age_s, compute)


@router.get("/v1/topics")
def list_topics(
    control: Control,
    search: Annotated[
        str, Query(max_length=250, description="Only topics whose name contains this text, regardless of case.")
    ] = "",
    skip: Annotated[int, Query(ge=0, le=INTEGER_MAX, description="Number of topics before the page.")] = 0,
    limit: Annotated[int, Query(ge=1, le=TOPICS_MAX)] = 100,
) -> TopicList:
    """Return the topics of the Kafka cluster by name, without Kafka's own topics and dead letters of jobs. A topic
    need not be a stream.
    """
    names = topic_names(control.ledger, control.log, search)
    following = None
    if skip + limit < len(names):
        following = f"/v1/topics?{urlencode({'search': search, 'skip': skip + limit, 'limit': limit})}"
    page = topic_views(control.ledger, control.log, names[skip : skip + limit])
    return TopicList(matches=len(names), topics=page, next=following)


SAMPLE_RECORDS = 1_000
RecordsWanted = Annotated[int, Query(ge=1, le=10_000, description="Maximum number of records to inspect.")]


@router.get("/v1/topics/{name}/proposal")
def propose_stream(
    control: Control, may_read_topics: MayReadTopics, name: str, records: RecordsWanted = SAMPLE_RECORDS
) -> ProposalView:
    """Propose the document of a stream, and a first pipeline, from the newest records of a topic. For an operator, the
    topic need not be a stream.
    """
    try:
        check_name(name)
    except ValueError as error:
        raise Conflict(f"a topic of this name can't be a stream: {error}; copy its records to another topic") from error
    require_readable(control, name, may_read_topics=may_read_topics)
    sample = control.log.sample(name, records)
    retention = format_retention(sample.retention_ms)
    proposal, documents = control.run_limited(
        "proposal", propose_for_topic, name, sample.values, sample.partitions, retention
    )
    return ProposalView(**vars(proposal), documents=documents)


@router.post("/v1/topics/{name}/preview", openapi_extra=DOCUMENTS_BODY)
def preview_over_topic(
    control: Control,
    may_read_topics: MayReadTopics,
    name: str,
    body: DocumentsBody,
    source: Source = "<request>",
    pipeline: PipelineName = None,
    records: Records = 1_000,
) -> SamplePreviewView:
    """Decode the newest records of a topic by the document of their stream, run the pipeline over them, and close all
    windows. Writes nothing. A viewer can read registered streams only; an operator can read each topic.
    """
    require_readable(control, name, may_read_topics=may_read_topics)
    with body.as_yaml(source, control.run_limited) as text:
        batch = control.applier.check(text, source)
        chosen = pipeline_of(batch, pipeline, source)
    if chosen is not None:
        chosen = with_present_tables(control.ledger, chosen)
    return preview_topic(control.log, batch, chosen, name, records, control.run_limited)


@router.get("/v1/streams/{name}/undeclared")
def undeclared(control: Control, name: str, records: RecordsWanted = SAMPLE_RECORDS) -> UndeclaredView:
    """Return members of the newest records that the schema doesn't declare."""
    row = control.ledger.stream(name)
    values = control.log.sample(name, records).values
    fields = control.run_limited("list of fields", undeclared_fields, StreamSpec.from_document(row.document), values)
    return UndeclaredView(
        stream=name,
        version=row.version,
        records=len(values),
        fields=[UndeclaredFieldView(**vars(one), share=round(one.records / len(values), 4)) for one in fields],
    )


@router.get("/v1/streams/{name}/devices")
def list_devices(
    control: Control,
    name: str,
    search: Annotated[
        str, Query(max_length=200, description="Only devices whose name contains this text, regardless of case.")
    ] = "",
    order: Annotated[Order, Query(description="`silence`: those that were silent longest first.")] = "silence",
    skip: Annotated[int, Query(ge=0, le=INTEGER_MAX, description="Number of devices before the page.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> DeviceList:
    """Return the devices of a stream, according to its newest records: last record, rate, and rejected records. The
    list names the range of log time that it covers.
    """
    found = control.devices.of(name)
    devices = chosen_devices(found, search, order)
    following = None
    if skip + limit < len(devices):
        options = {"search": search, "order": order, "skip": skip + limit, "limit": limit}
        following = f"/v1/streams/{quote(name, safe='')}/devices?{urlencode(options)}"
    return DeviceList(
        stream=name,
        read_ms=found.read_ms,
        from_ms=found.from_ms,
        is_complete=found.is_complete,
        records=found.records,
        devices=len(found.devices),
        matches=len(devices),
        page=list(devices[skip : skip + limit]),
        next=following,
    )


DeviceText = Annotated[
    str, Query(max_length=200, description="Only records of devices whose name contains this text, regardless of case.")
]
FromMs = Annotated[int | None, Query(ge=0, le=INTEGER_MAX, description="First log time.")]
ToMs = Annotated[
    int | None, Query(ge=0, le=INTEGER_MAX, description="Log time before which the records were appended.")
]
FoundLimit = Annotated[int, Query(ge=1, le=FOUND_MAX)]


@router.get("/v1/streams/{name}/records")
def list_records(
    control: Control,
    name: str,
    device: DeviceText = "",
    from_ms: FromMs = None,
    to_ms: ToMs = None,
    limit: FoundLimit = 20,
) -> FoundRecords:
    """Return the newest records of a stream, decoded, with their positions: all, or those of a device or of a range of
    log time. The response names the range of log time that was searched.
    """
    return control.record_search.find(name, Wanted(device, from_ms, to_ms), limit)


@router.post("/v1/streams/{name}/records/search", openapi_extra=_VALUE_BODY)
def find_records(
    control: Control,
    name: str,
    body: Annotated[bytes, Depends(_records_body)],
    device: DeviceText = "",
    from_ms: FromMs = None,
    to_ms: ToMs = None,
    limit: FoundLimit = 20,
) -> FoundRecords:
    """Return the newest records of a stream whose payload is the body. A payload in JSON may be written in another way:
    the members count, not their order or the spaces. Writes nothing.
    """
    return control.record_search.find(name, Wanted(device, from_ms, to_ms, body), limit)


@router.post("/v1/streams/{name}/records", response_model=AcceptedRecordsView, openapi_extra=_RECORDS_BODY)
async def send_records(
    control: Control, request: Request, name: str, body: Annotated[bytes, Depends(_records_body)]
) -> Response:
    """Relay records to an HTTP gateway, with the credentials of the caller, and return the gateway's response. The content
    type selects the arrangement of the records, as at the gateway. Needs the right to write to the stream.
    """
    authorization = None
    if request.app.state.authenticator is not None:
        authorization = authorization_of(request.scope, request.app.state.sessions)
    answer = await control.relay.send(name, request.url.query, body, request.headers.items(), authorization)
    headers = {} if answer.retry_after is None else {"Retry-After": answer.retry_after}
    return Response(answer.body, answer.status, headers, answer.content_type)


@router.get("/v1/streams/{name}/senders")
def show_senders(control: Control, name: str) -> SendingView:
    """Return how devices send records of a stream: addresses of gateways, MQTT topics, ports, and commands with an example."""
    spec = StreamSpec.from_document(control.ledger.stream(name).document)
    return ways_to_send(spec, control.gateways, requires_token=control.requires_token)


@router.get("/v1/streams/{name}")
def show_stream(control: Control, name: str) -> StreamView:
    """Return one stream, and the current range of its records in the topic."""
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


@router.get("/v1/streams/{name}/document")
def show_stream_document(control: Control, name: str) -> DocumentTextView:
    """Return the registered document of a stream as YAML, with its defaults."""
    row = control.ledger.stream(name)
    return DocumentTextView(name=name, version=row.version, text=document_text(row.document))


@router.delete("/v1/streams/{name}")
def delete_stream(control: Control, caller: Caller, name: str, keep_topic: bool = False) -> DeletedStreamView:
    """Delete a stream that no job reads or emits to, and its topic unless it is kept. Gateways refuse records for it
    after their next poll of the ledger.
    """
    control.lifecycle.delete_stream(name, keep_topic=keep_topic, principal=caller)
    return DeletedStreamView(stream=name, topic="kept" if keep_topic else "deleted")
