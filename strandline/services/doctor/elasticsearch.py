"""Check of Elasticsearch: its responses, its version, the user's rights, and the space on its disks.

Without security, the rights are tested with an index and a template of the doctor, which are deleted afterwards.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from strandline.core.errors import IndexUnavailable, StrandlineError
from strandline.core.settings import Settings
from strandline.core.urls import without_credentials
from strandline.results.elasticsearch_client import NDJSON, RequestRefused, login_of, request
from strandline.services.doctor.finding import Finding, ok, warning, wrong

SUBJECT = "Elasticsearch"
NAME_PREFIX = "strandline-doctor-"
_TIMEOUT_S = 8.0
_VERSION = 8
_CLUSTER_RIGHTS = ("monitor", "manage_index_templates")
_INDEX_RIGHTS = ("create_doc", "read", "create_index", "manage")
_REVISE_RIGHT = "index"
"""Right to replace a document. Only `late: {revise: ...}` needs it, so everything else works without it."""
_SEE_RIGHTS = "docs/security.md lists the rights"
_UNITS = {"b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40, "pb": 2**50}

Ask = Callable[..., Any]
"""`request`, for one server."""


def check_elasticsearch(settings: Settings, ask: Ask | None = None) -> Iterator[Finding]:
    """Yield the findings. The first reports whether the server responds."""
    url = settings.elasticsearch_url

    def asks(method: str, path: str, **more: Any) -> Any:
        return request(url, method, path, timeout_s=_TIMEOUT_S, **more)

    ask = ask or asks
    try:
        version = _version(ask)
    except (IndexUnavailable, RequestRefused) as error:
        yield wrong(SUBJECT, str(error), "start Elasticsearch, or check STRANDLINE_ELASTICSEARCH_URL and its login")
        return
    login = login_of(settings)
    yield ok(SUBJECT, f"answers at {without_credentials(url)}, version {version}{f', {login}' if login else ''}")
    if version.partition(".")[0] != str(_VERSION):
        yield wrong(
            SUBJECT, f"it is version {version}, and Strandline is made for {_VERSION}.x", "use Elasticsearch 8.19"
        )
    rights = _privileges(ask)
    yield from _of_privileges(rights) if rights is not None else _of_trial(ask)
    yield from _of_disks(ask)


def _version(ask: Ask) -> str:
    """Return the version of the server. Raises IndexUnavailable, RequestRefused."""
    try:
        return str(ask("GET", "/").get("version", {}).get("number", "unknown"))
    except RequestRefused as error:
        if error.status != 405:  # the embedded server doesn't have this endpoint
            raise
    nodes = ask("GET", "/_nodes/_local/none").get("nodes", {})
    return next((str(node.get("version")) for node in nodes.values()), "unknown")


def _privileges(ask: Ask) -> Mapping[str, Any] | None:
    """Return the rights of the user. None if security is off."""
    body = {"cluster": _CLUSTER_RIGHTS, "index": [{"names": ["*"], "privileges": (*_INDEX_RIGHTS, _REVISE_RIGHT)}]}
    try:
        answer = ask("POST", "/_security/user/_has_privileges", body=body)
    except RequestRefused as error:
        if error.status in (400, 404, 405, 500, 501):  # a server without security doesn't have this path
            return None
        raise
    return answer if isinstance(answer, dict) else None


def _of_privileges(rights: Mapping[str, Any]) -> Iterator[Finding]:
    missing = [name for name in _CLUSTER_RIGHTS if not rights.get("cluster", {}).get(name)]
    if missing:
        remedy = f"grant {', '.join(missing)} on the cluster; {_SEE_RIGHTS}"
        yield wrong(SUBJECT, f"the user lacks rights on the cluster: {', '.join(missing)}", remedy)
    on_all = rights.get("index", {}).get("*", {})
    lacking = [name for name in _INDEX_RIGHTS if not on_all.get(name)]
    if lacking:
        remedy = f"grant them on the names under which jobs emit; {_SEE_RIGHTS}"
        yield warning(SUBJECT, f"the user lacks these rights on some indices: {', '.join(lacking)}", remedy)
    elif not on_all.get(_REVISE_RIGHT):
        remedy = f"if a job revises results, grant {_REVISE_RIGHT} on the names under which it emits; {_SEE_RIGHTS}"
        message = (
            f"the user lacks this right on some indices: {_REVISE_RIGHT}; jobs need it if late records revise their results "
            "(late: {revise: ...})"
        )
        yield warning(SUBJECT, message, remedy)
    if not missing and not lacking:
        yield ok(SUBJECT, "the user has the rights for templates, indices, aliases, and documents")


def _of_trial(ask: Ask) -> Iterator[Finding]:
    name = f"{NAME_PREFIX}{uuid.uuid4().hex[:12]}"
    template = {"index_patterns": [name], "template": {"settings": {"number_of_replicas": 0}}}
    lines = [{"create": {"_id": "1"}}, {"doctor": True}]
    body = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    steps: list[tuple[str, str, str, dict[str, Any]]] = [
        ("make a template", "PUT", f"/_index_template/{name}", {"body": template}),
        ("make an index", "PUT", f"/{name}", {"parameters": {"wait_for_active_shards": "0"}}),
        ("name an alias", "PUT", f"/{name}/_alias/{name}-alias", {}),
        ("write documents", "POST", f"/{name}/_bulk", {"body": body, "content_type": NDJSON}),
    ]
    doing = ""
    try:
        for doing, method, path, more in steps:
            answer = ask(method, path, **more)
            if isinstance(answer, dict) and answer.get("errors"):
                yield wrong(SUBJECT, f"it refused to {doing}: {answer['items'][0]['create'].get('error')}", _SEE_RIGHTS)
                return
        yield ok(SUBJECT, "without security: a template, an index, an alias, and a document can be created and deleted")
    except (RequestRefused, IndexUnavailable) as error:
        yield wrong(SUBJECT, f"it could not {doing}: {error}", f"see the reason; {_SEE_RIGHTS}")
    finally:
        for path in (f"/{name}", f"/_index_template/{name}"):
            with suppress(StrandlineError):
                ask("DELETE", path)


def _of_disks(ask: Ask) -> Iterator[Finding]:
    try:
        parameters = {"include_defaults": "true", "flat_settings": "true"}
        answer = ask("GET", "/_cluster/settings", parameters=parameters)
        nodes = ask("GET", "/_cat/allocation", parameters={"format": "json", "bytes": "b"})
    except (RequestRefused, IndexUnavailable) as error:
        yield warning(SUBJECT, f"can't examine its disks: {error}", "grant monitor on the cluster")
        return
    settings = {**answer.get("defaults", {}), **answer.get("persistent", {}), **answer.get("transient", {})}
    fullest: list[Finding] = []
    for node in nodes:
        if not str(node.get("disk.avail") or "").isdigit() or not str(node.get("disk.total") or "").isdigit():
            continue  # the row of unassigned shards
        free, total = int(node["disk.avail"]), int(node["disk.total"])
        for level in ("flood_stage", "high", "low"):
            needed = free_bytes_needed(settings, level, total)
            if free < needed:
                make = wrong if level == "flood_stage" else warning
                message = (
                    f"node {node['node']} has {free >> 20:,} MB free, below the watermark {level} ({needed >> 20:,} MB)"
                )
                remedy = (
                    "free some space, or add a disk; at flood_stage its indices accept no documents, at low no "
                    "new shards"
                )
                fullest.append(make(SUBJECT, message, remedy))
                break
    yield from fullest or [ok(SUBJECT, "each node's disk is within its watermarks")]


def free_bytes_needed(settings: Mapping[str, Any], level: str, total: int) -> int:
    """Return the number of bytes that must be free on a disk of `total` bytes to be within a watermark. A watermark is a share
    of the disk that can be used, with a limit, or an amount that must be free. 0 if its form is unknown."""
    name = f"cluster.routing.allocation.disk.watermark.{level}"
    text = str(settings.get(name, ""))
    try:
        if text.endswith("%"):
            needed = int(total * (1 - float(text[:-1]) / 100))
        elif text.replace(".", "", 1).isdigit():
            needed = int(total * (1 - float(text)))
        else:
            return _bytes(text) or 0
    except ValueError:
        return 0
    headroom = _bytes(str(settings.get(f"{name}.max_headroom", "")))
    return needed if headroom is None else min(needed, headroom)


def _bytes(text: str) -> int | None:
    for unit in ("kb", "mb", "gb", "tb", "pb", "b"):
        if text.endswith(unit) and text.removesuffix(unit).replace(".", "", 1).isdigit():
            return int(float(text.removesuffix(unit)) * _UNITS[unit])
    return None
