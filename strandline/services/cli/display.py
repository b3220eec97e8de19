"""Turns responses of the API into tables and lines for people. Pure functions; nothing is printed here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from strandline.core.times.durations import TIME_MS_MAX, format_about, format_retention
from strandline.ledger.states import COMPLETED
from strandline.services.cli.output import cell_text, one_line

JsonObject = dict[str, Any]
_SENTENCES_MAX = 3
_STATE_STYLES = {"running": "green", "failed": "red", "stopped": "dim", "drained": "dim", COMPLETED: "green"}


def show_time(time_ms: int | None) -> str:
    """Return a time as `2026-11-21 10:15:00.250Z`; a dash for None. Event time can be beyond the year 9999."""
    if time_ms is None:
        return "-"
    if time_ms > TIME_MS_MAX:
        return "after the year 9999"
    shown = datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(sep=" ", timespec="milliseconds")
    return shown.replace("+00:00", "Z").replace(".000Z", "Z")


def show_count(count: int | None) -> str:
    """Return a number with thousands separators; a dash for None."""
    return "-" if count is None else f"{count:,}"


def show_state(state: str) -> Text:
    return Text(state, style=_STATE_STYLES.get(state, "yellow"))


def table_of(headings: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """Return a plain table. A heading that begins with '#' belongs to a column of numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(
            heading.lstrip("#"), justify="right" if heading.startswith("#") else "left", overflow="ellipsis"
        )
    for row in rows:
        table.add_row(*map(cell_text, row))
    return table


def jobs_tables(jobs: list[JsonObject]) -> list[Table]:
    """Return all jobs, one per line of 80 columns, followed by the messages of jobs that have one."""
    table = table_of(
        ("JOB", "STATE", "WATERMARK", "#LAG", "#RECORDS", "#REJECTED", "#RESULTS", "#CORES"),
        (
            (
                job["name"],
                show_state(job["state"]),
                show_time(job["watermark_ms"]).partition(".")[0],
                show_count(job["lag_records"]),
                show_count(job["counts"]["records"]),
                show_count(sum(job["counts"]["rejected"].values())),
                show_count(sum(job["counts"]["results"].values())),
                f"{job['cost']['cores']:.2f}" if job["cost"] else "-",
            )
            for job in jobs
        ),
    )
    messages = [
        (job["name"], shown_text) for job in jobs for shown_text in (job["message"], *job["warnings"]) if shown_text
    ]
    return [table, facts_table(list(messages))] if messages else [table]


def job_table(job: JsonObject) -> Table:
    """Return one job, one fact per line."""
    counts = job["counts"]
    rows: list[tuple[str, str | Text]] = [
        ("job", job["name"]),
        ("state", show_state(job["state"])),
        ("desired", job["desired"]),
        ("message", job["message"] or "-"),
        ("version", str(job["version"])),
        ("epoch", str(job["epoch"])),
        ("leader", _leader(job["leader"])),
        ("stream", ", ".join(job.get("streams") or [job["stream"]])),
        ("slice", show_count(job["slice"])),
        ("watermark", show_time(job["watermark_ms"])),
        ("latest event", show_time(job["latest_event_ms"])),
        ("lag in records", show_count(job["lag_records"])),
        *([("progress", batch_summary(job["batch"]))] if job.get("batch") else []),
        ("records", show_count(counts["records"])),
        ("accepted", show_count(counts["accepted"])),
    ]
    if job["cost"]:
        cost = job["cost"]
        rows += [
            ("cores used", f"{cost['cores']:.2f} (CPU time {cost['cpu_s']:,.1f} s)"),
            ("bytes read", show_count(cost["bytes_read"])),
            ("state in bytes", show_count(cost["state_bytes"])),
        ]
    rows += [(f"rejected: {reason}", show_count(count)) for reason, count in sorted(counts["rejected"].items())]
    rows += [(f"results: {stage}", show_count(count)) for stage, count in counts["results"].items()]
    rows += [(f"emitted up to: {stage}", show_time(end_ms)) for stage, end_ms in job["last_emission"].items()]
    if job["last_start"]:
        last = job["last_start"]
        method = "rewind" if last["method"] == "rewind" else "from a snapshot"
        rows.append(("last start", f"{method}, {show_count(last['records'])} records read again"))
    if job["rewind"]:
        rows.append(
            ("a rewind would read", f"{show_count(job['rewind']['records'])} records, {job['rewind']['seconds']:.1f} s")
        )
        if job["rewind"]["retention_left_ms"] is not None:
            left_ms = job["rewind"]["retention_left_ms"]
            rows.append(("retention left", format_about(max(0, left_ms))))
        if job["rewind"]["warning"]:
            rows.append(("warning", Text(job["rewind"]["warning"], style="red")))
    rows += [("warning", Text(shown_text, style="red")) for shown_text in job["warnings"]]
    rows += [("note", Text(note, style="yellow")) for note in job["notes"]]
    if job["backfill"]:
        one = job["backfill"]
        read = f"{one['records_done']:,} of {one['records']:,} records read"
        rows.append(("backfill", f"generation {one['generation']}, {one['state']}, {read}"))
    rows.append(("next steps", ", ".join(link["rel"] for link in job["links"])))
    return facts_table(rows)


def batch_summary(batch: JsonObject) -> str:
    """Return the progress of a batch: `45.0 % read, 12,345 records/s, about 20s left`."""
    shown_text = [f"{100 * batch['share']:.1f} % read"]
    if batch["records_per_s"] is not None:
        shown_text.append(f"{batch['records_per_s']:,.0f} records/s")
    if batch["records_left"] and batch["seconds_left"] is not None:
        shown_text.append(f"about {format_about(1_000 * max(1, round(batch['seconds_left'])))} left")
    return ", ".join(shown_text)


def applied_lines(applied: list[JsonObject]) -> list[Text]:
    """Return one line for each document: created, changed, or unchanged."""
    lines = []
    for one in applied:
        lines.append(Text(f"{one['kind']} {one['name']}: {one['outcome']} (version {one['version']})"))
        lines += [Text(f"  {note}") for note in one.get("notes", [])]
    return lines


def plan_tables(plan: JsonObject) -> list[Table]:
    """Return the plan of `apply`: a row for each job, each change, and each note."""
    jobs = plan["jobs"]
    planned = [(f"{one['kind']} {one['name']}", one) for one in plan["documents"]]
    planned += [(f"job {job['job']}", job) for job in jobs]
    summary = table_of(
        ("JOB", "OUTCOME", "#VERSION", "#RECORDS TO REWIND", "#SECONDS"),
        (
            (
                job["job"],
                job["outcome"],
                str(job["version"]),
                show_count(job["rewind"]["records"]) if job["rewind"] else "-",
                f"{job['rewind']['seconds']:.1f}" if job["rewind"] else "-",
            )
            for job in jobs
        ),
    )
    changes = table_of(
        ("OF", "EFFECT", "CHANGE", "CONSEQUENCE"),
        (
            row
            for name, one in planned
            for row in [
                *((name, change["effect"], change["change"], change["reason"]) for change in one["changes"]),
                *((name, "note", "-", note) for note in one.get("notes", [])),
            ]
        ),
    )
    return [summary, changes]


def streams_table(streams: list[JsonObject]) -> Table:
    return table_of(
        ("STREAM", "#VERSION", "#PARTITIONS", "RETENTION", "KEY", "FIELDS"),
        (
            (
                stream["name"],
                str(stream["version"]),
                str(stream["document"].get("partitions", "")),
                str(stream["document"].get("retention", "")),
                str(stream["document"].get("key") or "-"),
                ", ".join(stream["document"].get("schema", {})),
            )
            for stream in streams
        ),
    )


def stream_tables(stream: JsonObject) -> list[Table]:
    """Return one stream, and its partitions."""
    retention_ms = stream["retention_ms"]
    facts = facts_table(
        [
            ("stream", stream["name"]),
            ("version", str(stream["version"])),
            ("retention", format_retention(retention_ms)),
            ("records", show_count(stream["records"])),
            ("topic id", stream["topic_id"] or "-"),
            ("emitted by", stream["emitted_by"] or "-"),
            *((f"field: {name}", _field(spec)) for name, spec in stream["document"].get("schema", {}).items()),
        ]
    )
    partitions = table_of(
        ("#PARTITION", "#OFFSET FIRST", "#OFFSET NEXT"),
        ((str(one["partition"]), str(one["offset_first"]), str(one["offset_next"])) for one in stream["partitions"]),
    )
    undeclared = stream["undeclared"]
    fields = table_of(
        ("UNDECLARED FIELD", "TYPES", f"#SHARE OF THE NEWEST {undeclared['records']:,} RECORDS"),
        ((one["path"], ", ".join(one["types"]), f"{one['share']:.1%}") for one in undeclared["fields"]),
    )
    return [facts, partitions, *([fields] if undeclared["fields"] else [])]


def lookups_table(lookups: list[JsonObject]) -> Table:
    return table_of(
        ("LOOKUP", "#VERSION", "#ROWS", "KEY", "FIELDS", "SINCE", "SOURCE"),
        (
            (
                one["name"],
                str(one["version"]),
                show_count(one["rows"]),
                ", ".join(one["document"].get("key", [])),
                ", ".join(one["document"].get("schema", {})),
                show_time(one["applied_ms"]).partition(".")[0],
                _source(one["source"]),
            )
            for one in lookups
        ),
    )


def _source(source: JsonObject | None) -> str | Text:
    """Return a cell with the source of a lookup and its state."""
    if source is None:
        return "-"
    shown_text = f"{source['description']}, {source['state']}: {format_about(source['age_ms'])} old"
    return shown_text if source["state"] == "current" else Text(shown_text, style="red")


def _source_facts(source: JsonObject | None) -> list[tuple[str, str | Text]]:
    if source is None:
        return []
    facts: list[tuple[str, str | Text]] = [
        ("source", _source(source)),
        ("read", f"every {format_about(source['every_ms'])}, again in {format_about(source['next_in_ms'])}"),
        ("too old after", format_about(source["max_age_ms"])),
    ]
    if source["error"]:
        facts.append(("error", Text(source["error"], style="red")))
    if source["skipped"]:
        facts.append(("records skipped", f"{source['skipped']:,}; the last: {source['skipped_last']}"))
    return facts


def lookup_tables(lookup: JsonObject) -> list[Table]:
    """Return one lookup, and its versions."""
    needed = lookup["version_needed"]
    facts = facts_table(
        [
            ("lookup", lookup["name"]),
            ("version", str(lookup["version"])),
            ("rows", show_count(lookup["rows"])),
            ("key", ", ".join(lookup["document"].get("key", []))),
            ("jobs", ", ".join(lookup["jobs"]) or "-"),
            *_source_facts(lookup["source"]),
            *((f"field: {name}", _field(spec)) for name, spec in lookup["document"].get("schema", {}).items()),
        ]
    )
    versions = table_of(
        ("#VERSION", "#ROWS", "APPLIED", "DIGEST", "A REPLAY MAY NEED IT"),
        (
            (
                str(one["version"]),
                show_count(one["rows"]),
                show_time(one["applied_ms"]).partition(".")[0],
                one["digest"][:12],
                "yes" if needed is not None and one["version"] >= needed else "no",
            )
            for one in lookup["versions"]
        ),
    )
    return [facts, versions]


def versions_table(versions: list[JsonObject]) -> Table:
    return table_of(
        ("#VERSION", "APPLIED", "BY", "CURRENT"),
        (
            (
                str(one["version"]),
                show_time(one["created_ms"]).partition(".")[0],
                or_dash(one["applied_by"]),
                "yes" if one["is_current"] else "",
            )
            for one in versions
        ),
    )


def dead_letters_table(letters: list[JsonObject]) -> Table:
    return table_of(
        ("#NUMBER", "STREAM", "#PARTITION", "#OFFSET", "REASON", "STEP", "MESSAGE", "VALUE"),
        (
            (
                str(letter["number"]),
                letter["stream"],
                or_dash(letter["partition"]),
                or_dash(letter["offset"]),
                letter["reason"],
                letter["step"],
                letter["message"],
                letter["value"],
            )
            for letter in letters
        ),
    )


def dead_letter_table(letter: JsonObject) -> Table:
    names = ("number", "stream", "partition", "offset", "element", "reason", "step", "message", "value_bytes", "value")
    return facts_table([(name, or_dash(letter[name])) for name in (*names, "replay_of")])


def dead_letter_counts_tables(counts: JsonObject) -> list[Table]:
    """Return the counts of dead letters by reason and by step."""
    return [
        table_of((title, "#LETTERS"), ((name, f"{count:,}") for name, count in sorted(counts[key].items())))
        for title, key in (("REASON", "reasons"), ("STEP", "steps"))
    ]


_LEFT_OUT = {
    "late": "late records stay late; to requeue them, pass --reason late",
    "failed_again": "failed again after an earlier replay; to requeue them once more, pass --force",
    "accepted_elsewhere": "were accepted by other branches, which would count them twice; to requeue them, pass --force",
    "result": "belong to results, not to records; recompute their windows with strandline job backfill {job}",
    "result_stream": "belong to results of another job; recompute them there with strandline job backfill OTHER-JOB",
    "no_bytes": "have no bytes: the record was too large for a dead letter, and the log no longer contains it",
    "other_stream": "belong to a stream that the job no longer reads",
    "counted": "were accepted by a later version of the pipeline, so they would count twice",
    "not_edited": "aren't changed by the edits, or can't be edited; strandline dead-letters show {job} NUMBER shows one",
    "rejected_again": "would be rejected again after the edits; to requeue them anyway, pass --force",
}


def replay_notes(job: str, report: JsonObject) -> list[str]:
    """Return a remark for each reason why dead letters were skipped, with the remedy."""
    notes = [f"{count:,} {_LEFT_OUT[why].format(job=job)}" for why, count in sorted(report["skipped"].items())]
    late = report["outcomes"].get("late", 0) + report["skipped"].get("late", 0)
    if late:
        notes.append(
            f"a record whose windows are closed stays late after each replay. To count {late:,} late records, set a longer "
            f"delay in the pipeline, and run strandline job reset {job} --to TIME"
        )
    if report["unknown"]:
        notes.append(
            f"a killed replay may have requeued {report['unknown']:,} records, and the stream no longer contains that "
            "position, so they are skipped"
        )
    return notes


def replay_tables(report: JsonObject) -> list[Table | Text]:
    """Return the outcome of a replay as tables."""
    would = "would be " if report["dry_run"] else ""
    facts: list[tuple[str, str | Text]] = [
        ("dead letters", f"{report['matched']:,}"),
        (f"{would}requeued", f"{report['requeued']:,}"),
        ("requeued before", f"{report['requeued_before']:,}"),
        ("skipped", f"{sum(report['skipped'].values()):,}"),
    ]
    rows = ((name, f"{count:,}") for name, count in sorted(report["outcomes"].items()))
    return [
        facts_table(facts),
        table_of(("OUTCOME IN THE CURRENT VERSION", "#RECORDS"), rows),
        *map(Text, report["notes"]),
    ]


def repairs_table(repairs: list[JsonObject]) -> Table:
    """Return the edited records with their outcome, those that would be rejected again first."""
    return table_of(
        ("#NUMBER", "OUTCOME", "MESSAGE", "EDITED RECORD"),
        ((str(one["number"]), one["outcome"], one["message"], one["value"]) for one in repairs),
    )


def repair_summary(answer: JsonObject) -> str:
    """Return the outcome of a repair as a sentence."""
    if answer["requeued_before"]:
        return f"dead letter {answer['number']} was requeued before, and isn't requeued again"
    so = "is accepted" if answer["outcome"] == "accepted" else f"is rejected again ({answer['message']})"
    put = "would be" if answer["dry_run"] else "is"
    return f"dead letter {answer['number']} {put} requeued; in the current version, it {so}"


def stages_table(stages: list[JsonObject]) -> Table:
    return table_of(
        ("STAGE", "WINDOWS", "BY", "AGGREGATES", "EMITS"),
        (
            (
                stage["name"],
                stage["windows"],
                _typed(stage["by"]),
                _typed(stage["aggregates"]),
                ", ".join(stage["emits"]) or "-",
            )
            for stage in stages
        ),
    )


def audit_tables(report: JsonObject) -> list[Table]:
    """Return the report of an audit: the totals by log and ledger, the documents of each store, and the first differences."""
    computed, ledger = report["computed"], report["ledger"]
    rows: list[tuple[str, str, str]] = [
        (name, show_count(computed[name]), show_count(ledger[name])) for name in ("records", "accepted")
    ]
    for what, title in (("rejected", "rejected: "), ("results", "results: ")):
        for name in computed[what] | ledger[what]:
            theirs = ledger[what].get(name, 0) if ledger[what] or what == "rejected" else None
            rows.append((f"{title}{name}", show_count(computed[what].get(name, 0)), show_count(theirs)))
    slices = f"SLICES {report['slice_first']} TO {report['slice_last']}"
    stores = table_of(
        ("STORE", "WINDOWS UP TO", "FOUND"),
        (
            (
                one["store"],
                show_time(one["up_to_ms"]),
                ", ".join(f"{count:,} {kind}" for kind, count in one["counts"].items()) or "nothing",
            )
            for one in report["stores"]
        ),
    )
    tables = [table_of((slices, "#BY THE LOG", "#BY THE LEDGER"), rows), stores]
    if report["sample"]:
        tables.append(
            table_of(
                ("DIFFERENCE", "STORE", "WINDOW END", "ID", "DETAIL"),
                (
                    (one["kind"], one["store"], show_time(one["end_ms"]), one["id"], one["detail"])
                    for one in report["sample"]
                ),
            )
        )
    return tables


def audit_summary(report: JsonObject) -> str:
    """Return the outcome of an audit as a sentence."""
    whose = f"the audit of job {report['job']}"
    if report["outcome"] == "clean":
        same = sum(one["counts"].get("same", 0) for one in report["stores"] if one["stage"])
        return (
            f"{whose} is clean: {same:,} documents are equal to those computed from the log ({report['seconds']:.1f} s)"
        )
    if report["outcome"] == "incomplete":
        return f"{whose} is incomplete: {report['incomplete']}"
    first = [*report["totals_differences"], *report["event_time_differences"][:_SENTENCES_MAX]]
    messages = [f"{whose} found {report['differences']:,} differences", *first]
    return "; ".join(messages + ([report["incomplete"]] if report["incomplete"] else []))


def backfill_table(backfill: JsonObject) -> Table:
    """Return one backfill, one fact per line."""
    rows: list[tuple[str, str | Text]] = [
        ("job", backfill["job"]),
        ("generation", str(backfill["generation"])),
        ("version", str(backfill["version"])),
        ("state", _backfill_state(backfill["state"])),
        ("message", backfill["message"] or "-"),
    ]
    rows += [
        (f"windows: {stage}", f"after {show_time(one['after_ms'])}, up to {show_time(one['up_to_ms'])}")
        for stage, one in backfill["windows"].items()
    ]
    rows += [
        ("done up to", show_time(backfill["done_ms"])),
        ("records read", f"{backfill['records_done']:,} of {backfill['records']:,}"),
    ]
    rows += [(f"results: {stage}", show_count(count)) for stage, count in backfill["results"].items()]
    rows += [(f"refused: {stage}", show_count(count)) for stage, count in backfill["refused"].items()]
    rows += [("refused, for example", one) for one in backfill["sample"][:1]]
    return facts_table(rows)


def backfills_table(backfills: list[JsonObject]) -> Table:
    """Return all backfills of a job, one per line."""
    return table_of(
        ("#GENERATION", "STATE", "#VERSION", "FROM", "TO", "DONE UP TO", "#RESULTS", "#REFUSED", "MESSAGE"),
        (
            (
                str(one["generation"]),
                _backfill_state(one["state"]),
                str(one["version"]),
                show_time(one["from_ms"]),
                show_time(one["to_ms"]),
                show_time(one["done_ms"]),
                show_count(sum(one["results"].values())),
                show_count(sum(one["refused"].values())),
                one["message"] or "-",
            )
            for one in backfills
        ),
    )


def events_table(events: list[JsonObject]) -> Table:
    """Return events, one per line."""
    return table_of(
        ("TIME", "JOB", "EVENT", "BY", "MESSAGE"),
        (
            (show_time(one["at_ms"]), one["job"] or "-", one["kind"], one["principal"] or "-", one["message"])
            for one in events
        ),
    )


def event_line(event: JsonObject) -> str:
    """Return an event on one line."""
    about = " ".join([*([event["job"]] if event["job"] else []), event["kind"]])
    by = f" (by {event['principal']})" if event["principal"] else ""
    return f"{show_time(event['at_ms'])} {about}: {event['message']}{by}"


def tokens_table(tokens: list[JsonObject], now_ms: int) -> Table:
    """Return tokens, one per line."""
    return table_of(
        ("NAME", "ROLE", "WRITES", "STATE", "MADE BY", "MADE", "EXPIRES", "LAST USED"),
        (
            (
                one["name"],
                one["role"] or "-",
                ", ".join(one["writes"]) or "-",
                _token_state(one, now_ms),
                one["created_by"],
                show_time(one["created_ms"]),
                show_time(one["expires_ms"]),
                show_time(one["used_ms"]),
            )
            for one in tokens
        ),
    )


def _token_state(token: JsonObject, now_ms: int) -> str:
    if token["revoked_ms"] is not None:
        return f"revoked by {token['revoked_by']}"
    return "valid" if token["expires_ms"] is None or now_ms < token["expires_ms"] else "expired"


def _backfill_state(state: str) -> Text:
    styles = {"complete": "green", "failed": "red", "cancelled": "dim"}
    return Text(state, style=styles.get(state, "yellow"))


def facts_table(rows: list[tuple[str, str | Text]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(one_line(name), one_line(value))
    return table


def _leader(leader: JsonObject | None) -> str:
    if leader is None:
        return "-"
    return f"{leader['name']} ({leader['address']}), lease until {show_time(leader['lease_until_ms'])}"


def _field(spec: str | JsonObject) -> str:
    if isinstance(spec, str):
        return spec
    parts = [f"{spec['type']}{'' if spec.get('required', True) else '?'}"]
    parts += [f"{name} {spec[name]}" for name in ("min", "max", "unit", "tz") if spec.get(name) is not None]
    return ", ".join(parts)


def _typed(fields: dict[str, str]) -> str:
    return ", ".join(f"{name} {type_name}" for name, type_name in fields.items()) or "-"


def or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def deleted_job_summary(answer: JsonObject) -> str:
    """Return a sentence about a deleted job and its results."""
    indices = ", ".join(answer["indices"]) or "none"
    return (
        f"job {answer['job']} is deleted; its results ({indices}) are {answer['results']}, its dead letters "
        f"{answer['dead_letters']}"
    )


def job_line(job: JsonObject) -> str:
    """Return a job in one line, for output that isn't a terminal."""
    counts, message = job["counts"], f" ({job['message']})" if job["message"] else ""
    rejected = sum(counts["rejected"].values())
    return (
        f"{job['name']} {job['state']}{message}: slice {or_dash(job['slice'])}, {show_count(job['lag_records'])} behind, "
        f"{counts['records']:,} records, {rejected:,} rejected, {sum(counts['results'].values()):,} results, watermark "
        f"{show_time(job['watermark_ms'])}"
    )
