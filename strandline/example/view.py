"""Displays the example: a live view on a terminal, lines elsewhere, and the account at the end. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from strandline.example.watch import Facts
from strandline.services.client import JsonObject

HOUR_MS = 3_600_000


@dataclass(frozen=True)
class ResultLinks:
    """Links and commands for the next steps of the user."""

    console: str
    """Address of the console."""
    api_docs: str
    search: str
    """Command that queries Elasticsearch."""
    login: str
    """Login of other programs to Elasticsearch. Empty if it requires none."""
    job_status: str
    """Command that shows the job."""
    dead_letters: str
    """Command that lists the dead letters."""
    logs: str
    speed: float
    delay_ms: int
    """Delay of the pipeline: a window closes when event time is this far past its end."""


def render(facts: Facts, links: ResultLinks) -> RenderableType:
    """Return the live view."""
    job, sent = facts.job, facts.sent
    state = "not known" if job is None else f"{job['state']}{': ' + job['message'] if job['message'] else ''}"
    lag = "" if job is None or job["lag_records"] is None else f", {job['lag_records']:,} records behind"
    rows = [
        (
            "records in",
            f"{show_counts(sent.by_protocol)}; {sent.acknowledged:,} acknowledged, {facts.per_second:,.0f}/s",
        ),
        ("event time", f"{show_time(sent.event_ms)}   watermark {show_time(job['watermark_ms'] if job else None)}"),
        ("job", f"{job['name'] if job else ''} {state}{lag}"),
        ("windows out", f"{show_counts(facts.counts['results'])}{_next_hour(facts, links)}"),
        ("dead letters", f"{show_counts(facts.dead_letters)}   (spoiled on purpose: {sent.spoiled.total():,})"),
    ]
    if facts.trouble:
        rows.append(("trouble", facts.trouble))
    tables = [_documents_table(alias, documents) for alias, documents in facts.documents.items() if documents]
    return Panel(
        Group(_facts_table(rows), *tables),
        title=f"a wind farm of 40 turbines, event time {links.speed:g} times as fast as the clock",
        subtitle="Ctrl-C stops everything",
        padding=(0, 1),
    )


def links_shown(links: ResultLinks) -> list[str]:
    """Return suggestions to try while it runs, one per line."""
    return [
        "where to look next, from another terminal:",
        f"  the console    {links.console}",
        f"  the API        {links.api_docs}",
        f"  results        {links.search}",
        *([f"  other clients  {links.login}"] if links.login else []),
        f"  the job        {links.job_status}",
        f"  dead letters   {links.dead_letters}",
        f"  logs           {links.logs}",
    ]


def plain_line(facts: Facts) -> str:
    """Return one line, for output that isn't a terminal."""
    job = facts.job
    known = (
        f"watermark {show_time(job['watermark_ms'])}, {_or_dash(job['lag_records'])} records behind, "
        f"windows out: {show_counts(facts.counts['results'])}, dead letters: {show_counts(facts.dead_letters)}"
        if job
        else f"trouble: {facts.trouble}"
    )
    return f"{facts.running_s:.0f} s: records in: {show_counts(facts.sent.by_protocol)} ({facts.per_second:,.0f}/s), {known}"


def account(facts: Facts, is_caught_up: bool) -> list[str]:
    """Return a summary of the example in sentences, one per line."""
    sent = facts.sent
    spoiled, dead = sent.spoiled, facts.dead_letters
    lines = [
        f"{facts.running_s:.0f} s: {sent.sent:,} records sent, {sent.acknowledged:,} acknowledged, "
        f"{sent.unacknowledged:,} sent by UDP, which has no acknowledgements; {sent.repeats:,} sent again",
        f"records in the log: {facts.counts['records']:,}; sent by protocol: {show_counts(sent.by_protocol)}",
        f"windows emitted: {show_counts(facts.counts['results'])}",
        f"spoiled on purpose {spoiled.total():,}: {show_counts(spoiled)}",
        f"dead letters       {dead.total():,}: {show_counts(dead)}",
    ]
    if not is_caught_up:
        lines.append("the job had not yet read everything; it continues there when the stack is started again")
    elif facts.job is None:
        lines.append(f"the counts of the job are unknown: {facts.trouble}")
    elif dead == spoiled:
        lines.append("every spoiled record is a dead letter with its reason, and no other record is")
    elif 0 < (lost := sent.acknowledged + sent.unacknowledged - facts.counts["records"]) <= sent.unacknowledged:
        lines.append(
            f"{lost:,} records are not in the log: UDP has no guarantee; the metrics of its gateway count the drops"
        )
    elif sent.repeats or sent.acknowledged + sent.unacknowledged != sent.sent:
        lines.append(
            "the two differ: records that were sent again can be in the log twice, unacknowledged records once or not at all"
        )
    else:
        lines.append("the two differ, but must not; see the dead letters and the runner's log")
    return lines


def show_time(time_ms: int | None) -> str:
    """Return a time as `2026-11-21 10:15:00 UTC`; a dash for None."""
    return f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC" if time_ms is not None else "-"


def show_counts(counts: Mapping[str, int]) -> str:
    """Return counts as `decode 3, late 1`, without zeros; `none yet` if all are zero."""
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()) if count) or "none yet"


def _next_hour(facts: Facts, links: ResultLinks) -> str:
    """Return the time until the next hour closes, by the watermark."""
    watermark_ms, event_ms = facts.job["watermark_ms"] if facts.job else None, facts.sent.event_ms
    if watermark_ms is None or event_ms is None:
        return ""
    closes_ms = (watermark_ms // HOUR_MS + 1) * HOUR_MS + links.delay_ms
    if event_ms >= closes_ms:
        return "   (an hour closes as soon as the job has caught up)"
    return f"   (an hour closes in about {(closes_ms - event_ms) / links.speed / 1000:.0f} s)"


def _documents_table(alias: str, documents: list[JsonObject]) -> Table:
    names = [name for name in documents[0] if name not in ("@timestamp", "window", "strandline")]
    table = Table(title=f"\nthe newest in {alias}", title_justify="left", box=None, pad_edge=False, header_style="dim")
    table.add_column("window end")
    for name in names:
        table.add_column(name, justify="left" if isinstance(documents[0][name], str) else "right")
    for document in documents:
        table.add_row(*(Text(_cell(document.get(name))) for name in ("@timestamp", *names)))
    return table


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else _or_dash(value)


def _or_dash(value: object) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _facts_table(rows: list[tuple[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        # Text, so that no bracket in a message is read as markup.
        table.add_row(name, Text(value))
    return table
