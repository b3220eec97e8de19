"""The actions of the console: where the page offers each of them, and what each of them changes.

The names are those of the REST API. `docs/openapi.json` has the role that each needs.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from strandline.access.rights import RequiredRight
from strandline.ledger.states import Role
from tests.support.control import Api

_ROOT = Path(__file__).parents[2]
SOURCES = _ROOT / "console" / "src"
ROLES = (Role.METRICS, Role.VIEWER, Role.OPERATOR, Role.ADMIN)
"""Each role has the rights of those before it."""
READING = {
    '"/v1/session"': "POST /v1/session",
    "RENEWAL": "POST /v1/session/renewal",
    '"/v1/pipelines/check"': "POST /v1/pipelines/check",
    '"/v1/documents/plan"': "POST /v1/documents/plan",
    "`/v1/documents/conversion?as=${form}`": "POST /v1/documents/conversion",
    '"/v1/samples/preview"': "POST /v1/samples/preview",
    "`/v1/pipelines/preview?records=${NEWEST}${chosen}`": "POST /v1/pipelines/preview",
    "`/v1/topics/${quoted(this.topic)}/preview?records=${NEWEST}`": "POST /v1/topics/{name}/preview",
    "`/v1/samples/proposal?name=${quoted(this.name)}`": "POST /v1/samples/proposal",
    "next": "POST /v1/jobs/{name}/dead-letters/requeue",
    "repair": "POST /v1/jobs/{name}/dead-letters/repair",
    "path": "POST /v1/streams/{name}/records/search",
}
"""Path of a request that the page sends without a dialog, as its source writes it -> operation. `next`: the parts of a requeue or
of a repair of several dead letters, and their dry runs."""
NOT_IN_THE_PAGE = {
    "POST /v1/jobs/{name}/restore": "strandline job backfill --missing",
    "DELETE /v1/streams/{name}": "strandline stream delete",
}
"""Operation that the page doesn't offer -> its command."""


def role_needed(operation: str) -> str:
    """Return the role that an operation needs, by the description of the REST API; `open` if none."""
    method, _, path = operation.partition(" ")
    description = json.loads((_ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
    return str(description["paths"][path][method.lower()]["x-strandline-needs"])


def is_allowed(role: Role, operation: str) -> bool:
    """Return True if the role includes the right. Only admins write to each stream."""
    if role_needed(operation) == RequiredRight.WRITE:
        return role is Role.ADMIN
    return ROLES.index(role) >= ROLES.index(Role(role_needed(operation)))


def described_changes() -> set[str]:
    """Return the operations of the description that aren't only read."""
    description = json.loads((_ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
    return {
        f"{method.upper()} {path}"
        for path, operations in description["paths"].items()
        for method in operations
        if method != "get"
    }


def operations_in_sources() -> set[str]:
    """Return the operations that change something and that the sources of the page name."""
    names = (re.findall(r'"((?:POST|PUT|PATCH|DELETE) /v1/[^"]+)"', text) for text in _texts())
    return {name for some in names for name in some}


def direct_requests() -> set[str]:
    """Return the paths, as the sources write them, of requests that change something or read a body, without a dialog."""
    paths = (re.findall(r'request\(\s*"(?:POST|PUT|PATCH|DELETE)",\s*(`[^`]*`|[^,)]+)', text) for text in _texts())
    return {path for some in paths for path in some}


def _texts() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted(SOURCES.rglob("*.js"))]


@dataclass(frozen=True)
class PageAction:
    """An action that the page offers."""

    operation: str
    subject: str
    """Name in the path of the operation; several parts are separated by a slash."""
    address: str
    button: str
    """Button that opens the dialog. The button of the dialog has the same name, without `…`."""
    why_not: str
    """Element with the role that the action needs, for users without it."""
    state: Callable[[Api], Any]
    """Value that the action changes."""
    is_done: Callable[[Any, Any], bool]
    """Return True if the value, before and after the action, shows its effect."""
    ready: Callable[[Page], None] = lambda page: None
    """Fill in the fields, so that the button is enabled."""

    @property
    def path(self) -> str:
        parts = iter(self.subject.split("/"))
        return re.sub(r"{\w+}", lambda _: next(parts), self.operation.partition(" ")[2])


def _write_documents(page: Page) -> None:
    page.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("stream: gauges\nschema: {gauge: string, ts: timestamp, value: double}\nkey: gauge\n")
    page.locator(".planned h3").filter(has_text="gauges").wait_for()


def _fill_in_a_token(page: Page) -> None:
    page.get_by_label("Name").fill("dashboard")


def _fill_in_a_range(page: Page) -> None:
    page.get_by_label("Windows that end after").fill("2020-01-01T00:00:00")


def _try_requeue(page: Page) -> None:
    page.get_by_role("button", name="What would requeueing do?").click()
    page.locator(".outcome b").wait_for()


def _try_repair(page: Page) -> None:
    repaired = {"pump": "p-1", "ts": time.time_ns() // 1_000_000, "pressure": 4}
    page.get_by_label("New payload").fill(json.dumps(repaired))
    page.get_by_role("button", name="Try it").click()
    page.get_by_role("button", name="Repair 1", exact=True).wait_for()


def _try_repairs(page: Page) -> None:
    page.get_by_label("Value (JSON)").fill("4")
    page.get_by_role("button", name="Another edit").click()
    page.get_by_role("combobox", name="Member", exact=True).last.fill("ts")
    page.get_by_label("Value (JSON)").last.fill(str(time.time_ns() // 1_000_000))
    page.get_by_role("button", name="Try it").click()
    page.locator(".outcome-panel .primary").wait_for()


def _of_job(
    operation: str, job: str, button: str, state: Callable[[Api], Any], is_done: Callable[[Any, Any], bool]
) -> PageAction:
    return PageAction(operation, job, f"#/jobs/{job}", button, ".actions", state, is_done)


def _becomes(wanted: Any) -> Callable[[Any, Any], bool]:
    return lambda before, after: before != wanted and after == wanted


def _grows(before: Any, after: Any) -> bool:
    return bool(after > before)


def _state(job: str) -> Callable[[Api], str]:
    return lambda api: api.ledger.job(job).state


def _paste_records(page: Page) -> None:
    page.get_by_label("Records, one per line or a JSON array").fill('{"turbine": "T1"}\n{"turbine": "T2"}\n')


PAGE_ACTIONS = [
    PageAction(
        "POST /v1/streams/{name}/records",
        "turbines",
        "#/streams/turbines",
        "Send…",
        ".sending .why-not",
        lambda api: [value for stream, value in api.sent.values if stream == "turbines"],
        _becomes([b'{"turbine": "T1"}', b'{"turbine": "T2"}']),
        _paste_records,
    ),
    PageAction(
        "POST /v1/jobs/{name}/dead-letters/requeue",
        "pump-pressure",
        "#/dead-letters/pump-pressure",
        "Requeue 64",
        ".aside",
        lambda api: len(api.requeued),
        lambda before, after: (before, after) == (0, 64),
        _try_requeue,
    ),
    PageAction(
        "POST /v1/jobs/{name}/dead-letters/repair",
        "pump-pressure",
        "#/dead-letters/pump-pressure/63/repair",
        "Repair 1",
        ".consequences",
        lambda api: len(api.requeued),
        lambda before, after: after == before + 1,
        _try_repair,
    ),
    PageAction(
        "POST /v1/jobs/{name}/dead-letters/repairs",
        "pump-pressure",
        "#/dead-letters/pump-pressure/63/repair?of=kind",
        "Repair 12",
        ".consequences",
        lambda api: len(api.requeued),
        lambda before, after: after == before + 12,
        _try_repairs,
    ),
    _of_job("POST /v1/jobs/{name}/start", "turbine-export", "Start", _state("turbine-export"), _becomes("running")),
    _of_job("POST /v1/jobs/{name}/stop", "turbine-export", "Stop", _state("turbine-export"), _becomes("stopped")),
    _of_job(
        "POST /v1/jobs/{name}/reset",
        "turbine-export",
        "Reset to the earliest record",
        lambda api: len(api.ledger.events_of_kind("turbine-export", "job_reset")),
        _grows,
    ),
    _of_job(
        "DELETE /v1/jobs/{name}",
        "turbine-export",
        "Delete",
        lambda api: "turbine-export" in [job.name for job in api.ledger.jobs()],
        _becomes(False),
    ),
    _of_job(
        "POST /v1/jobs/{name}/restart",
        "turbine-health",
        "Restart",
        lambda api: api.ledger.job("turbine-health").epoch,
        _grows,
    ),
    _of_job("POST /v1/jobs/{name}/audit", "turbine-health", "Audit", lambda api: len(api.audited), _grows),
    _of_job("POST /v1/jobs/{name}/drain", "turbine-health", "Drain", _state("turbine-health"), _becomes("drained")),
    PageAction(
        "POST /v1/documents",
        "",
        "#/edit",
        "Apply…",
        ".why-not",
        lambda api: "gauges" in [stream.name for stream in api.ledger.streams()],
        _becomes(True),
        _write_documents,
    ),
    PageAction(
        "POST /v1/jobs/{name}/backfills",
        "pump-pressure",
        "#/audits/pump-pressure",
        "Backfill…",
        ".why-not",
        lambda api: len(api.ledger.backfills("pump-pressure")),
        _grows,
        _fill_in_a_range,
    ),
    PageAction(
        "POST /v1/jobs/{name}/backfills/{generation}/cancel",
        "turbine-health/3",
        "#/audits",
        "Cancel backfill 3 of turbine-health",
        ".why-not-cancel",
        lambda api: api.ledger.backfill("turbine-health", 3).state.value,
        _becomes("cancelled"),
    ),
    PageAction(
        "DELETE /v1/lookups/{name}",
        "crews",
        "#/lookups/crews",
        "Delete…",
        ".actions",
        lambda api: [one.name for one in api.ledger.lookups()],
        _becomes(["sites"]),
    ),
    PageAction(
        "POST /v1/notices/{name}/test",
        "night",
        "#/notices/night",
        "Test…",
        ".actions",
        lambda api: len(api.ledger.notice_messages("night")),
        _grows,
    ),
    PageAction(
        "POST /v1/notices/{name}/mute",
        "night",
        "#/notices/night",
        "Mute…",
        ".actions",
        lambda api: api.ledger.notice("night").muted_until_ms is not None,
        _becomes(True),
    ),
    PageAction(
        "DELETE /v1/notices/{name}",
        "night",
        "#/notices/night",
        "Delete…",
        ".actions",
        lambda api: [one.name for one in api.ledger.notices()],
        _becomes([]),
    ),
    PageAction(
        "POST /v1/doctor",
        "",
        "#/doctor",
        "Examine…",
        "sl-doctor .aside",
        lambda api: api._dependencies.examinations.state().ended_ms,
        _grows,
    ),
    PageAction(
        "POST /v1/tokens",
        "",
        "#/tokens",
        "Create…",
        "sl-tokens .empty",
        lambda api: "dashboard" in [token.name for token in api.ledger.tokens()],
        _becomes(True),
        _fill_in_a_token,
    ),
    PageAction(
        "POST /v1/tokens/{name}/revoke",
        "writer",
        "#/tokens",
        "Revoke writer",
        "sl-tokens .empty",
        lambda api: [token.revoked_by for token in api.ledger.tokens() if token.name == "writer"],
        _becomes(["admin"]),
    ),
]
"""In an order in which each of them can be executed once, over the jobs of `furnished_console`."""
