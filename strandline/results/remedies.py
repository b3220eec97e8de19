"""Remedies for an operator if Elasticsearch doesn't accept results: a message for each of its answers."""

from __future__ import annotations

from strandline.core.errors import IndexMisconfigured
from strandline.results.bulk_answer import BulkItem
from strandline.results.elasticsearch_client import RequestRefused

_WHAT_NEXT = "No result was lost. Then start the job again."
_RIGHT = (
    "grant the user in STRANDLINE_ELASTICSEARCH_URL the rights create_doc, read, create_index, and manage on the indices and "
    "aliases {name}* (and index, if late records revise results)"
)
_OF_TYPES = {
    "index_closed_exception": "open it: POST /{index}/_open",
    "cluster_block_exception": (
        "lift the block: PUT /{index}/_settings with a null for the setting index.blocks.* that is on, or PUT /_cluster/settings "
        "with a null for cluster.blocks.*"
    ),
    "security_exception": _RIGHT,
    "invalid_index_name_exception": "let the stage emit under another name",
    "validation_exception": (
        "the cluster has as many shards as cluster.max_shards_per_node allows: delete unused indices, add a node, or raise "
        "that setting"
    ),
}
_OF_STATUSES = {401: _RIGHT, 403: _RIGHT}
_PIPELINE = (
    "create the ingest pipeline, or remove it from the index: PUT /{index}/_settings with a null for index.default_pipeline "
    "and index.final_pipeline"
)
_OTHER = "fix the cause that the answer names"


def stopped_by_item(item: BulkItem, emit_name: str) -> IndexMisconfigured:
    """Return the error for an item that the store doesn't accept because of its configuration."""
    index = item.document.index
    answer = f"{item.status} {item.type}: {item.reason}" if item.type else f"{item.status} without creating it"
    remedy = _remedy(item.status, item.type, item.reason)
    return _error(f"index {index} accepts no documents; its answer was {answer}", remedy, index, emit_name)


def stopped_by_request(error: RequestRefused, index: str, emit_name: str) -> IndexMisconfigured:
    """Return the error for a complete request that Elasticsearch refuses."""
    return _error(str(error), _remedy(error.status, error.error_type, ""), index, emit_name)


def _remedy(status: int, error_type: str, reason: str) -> str:
    if "pipeline" in reason or not error_type:  # a document that an ingest pipeline drops is no error
        return _PIPELINE
    return _OF_TYPES.get(error_type) or _OF_STATUSES.get(status, _OTHER)


def _error(what: str, remedy: str, index: str, emit_name: str) -> IndexMisconfigured:
    text = f"{what.removesuffix('.')}; {remedy.format(index=index, name=emit_name)}. {_WHAT_NEXT}"
    return IndexMisconfigured(" ".join(text.split()))
