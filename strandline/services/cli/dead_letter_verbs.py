"""Commands for dead letters."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.text import Text

from strandline.core.documents import did_you_mean
from strandline.core.record_headers import DeadLetterReason
from strandline.services.cli import display
from strandline.services.cli.options import AsJson, DataDir, Name, TokenFile, Url, connect, parse_time
from strandline.services.cli.output import after_of, print_next_page, show, waiting

if TYPE_CHECKING:  # its httpx takes a tenth of a second to import
    from strandline.services.client import JsonObject

_REPAIRS_SHOWN = 20
"""Maximum number of edited records that are printed."""

dead_letters_app = typer.Typer(help="Rejected records with the reason: list, repair, requeue.", no_args_is_help=True)

Reason = Annotated[
    str | None,
    typer.Option(help=f"Only dead letters with this reason: {', '.join(get_args(DeadLetterReason))}."),
]
Step = Annotated[str | None, typer.Option(help="Only dead letters of this step.")]
Since = Annotated[
    str | None,
    typer.Option(help="Only dead letters written at or after this time (ISO 8601; UTC if it names no zone)."),
]
Until = Annotated[str | None, typer.Option(help="Only dead letters written before this time.")]
Kind = Annotated[
    str | None,
    typer.Option(help="Only dead letters of this kind: the message without values, `kind` in the output of --json."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the outcome for each dead letter, and write nothing.")]


@dead_letters_app.command("list", epilog="Example: strandline dead-letters list nab --reason decode --limit 10")
def list_dead_letters(
    job: Name,
    after: Annotated[int, typer.Option(min=-1, help="Only dead letters with a higher number.")] = -1,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Maximum number of dead letters, the oldest first.")
    ] = 100,
    reason: Reason = None,
    step: Step = None,
    since: Since = None,
    until: Until = None,
    kind: Kind = None,
    counts: Annotated[bool, typer.Option("--counts", help="Show only the counts by reason and by step.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List the dead letters of the job, the oldest first."""
    wanted = _wanted(reason, step, since, until, kind)
    with connect(data_dir, url, token_file) as client:
        if counts:
            total = piece = client.count_dead_letters(job, after=after, **wanted)
            while piece["next"]:
                piece = client.get(piece["next"])
                total = _sum(total, piece)
            show({**total, "next": None}, as_json, lambda: display.dead_letter_counts_tables(total))
            return
        answer = client.dead_letters(job, after, limit, **wanted)
        while (
            answer["next"] and len(answer["dead_letters"]) < limit
        ):  # a page can contain few dead letters that match the filter
            after = int(after_of(answer["next"]))
            more = client.dead_letters(job, after, limit - len(answer["dead_letters"]), **wanted)
            answer = {**more, "dead_letters": [*answer["dead_letters"], *more["dead_letters"]]}
    show(answer, as_json, lambda: [display.dead_letters_table(answer["dead_letters"])])
    print_next_page(answer, "how many there are: --counts", "only later ones: --since TIME")


@dead_letters_app.command("show", epilog="Example: strandline dead-letters show nab 0")
def show_dead_letter(
    job: Name,
    number: Annotated[int, typer.Argument(min=0, help="Number of the dead letter in the list.")],
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter with all bytes of the record."""
    with connect(data_dir, url, token_file) as client:
        answer = client.dead_letter(job, number)
    show(answer, as_json, lambda: [display.dead_letter_table(answer)])


@dead_letters_app.command("requeue", epilog="Example: strandline dead-letters requeue nab --reason decode --dry-run")
def requeue_dead_letters(
    job: Name,
    reason: Reason = None,
    step: Step = None,
    since: Since = None,
    until: Until = None,
    kind: Kind = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also requeue records that failed again after an earlier replay, or that other branches accepted.",
        ),
    ] = False,
    dry_run: DryRun = False,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Requeue dead letters: write their records to their stream again, each at most once. The current version reads
    them.
    """
    wanted = _wanted(reason, step, since, until, kind)
    flags = {"force": str(force).lower(), "dry_run": str(dry_run).lower()}
    with connect(data_dir, url, token_file) as client, waiting(f"replay of dead letters of job {job}") as report:
        total = piece = client.requeue_dead_letters(job, **wanted, **flags)
        while piece["next"]:
            report("dead letters looked at", done=total["matched"])
            piece = client.post(piece["next"])
            total = _sum(total, piece)
    total = {**total, "next": None, "notes": display.replay_notes(job, total)}
    show(total, as_json, lambda: display.replay_tables(total))


@dead_letters_app.command(
    "repair", epilog="Example: strandline dead-letters repair nab --reason schema --set load=null --dry-run"
)
def repair_dead_letter(
    job: Name,
    letter: Annotated[
        str | None,
        typer.Argument(
            help="STREAM/PARTITION/OFFSET of the record, or the number of the dead letter. Without it, the edits apply to all "
            "that match."
        ),
    ] = None,
    payload: Annotated[
        typer.FileBinaryRead | None,
        typer.Option(help="File with the new payload; - is stdin. For one letter.", lazy=True),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="MEMBER=JSON: give a member this value. A member is a name, or a path as $.sensor.value."
        ),
    ] = None,
    renames: Annotated[list[str] | None, typer.Option("--rename", help="MEMBER=NAME: rename a member.")] = None,
    removed: Annotated[list[str] | None, typer.Option("--remove", help="Remove a member.")] = None,
    numbers: Annotated[
        list[str] | None,
        typer.Option("--number", help="Write a string that contains a number as a number, also with a decimal comma."),
    ] = None,
    replaced: Annotated[
        list[str] | None, typer.Option("--replace", help="TEXT=TEXT: replace a string in the payload, in any format.")
    ] = None,
    reason: Reason = None,
    step: Step = None,
    since: Since = None,
    until: Until = None,
    kind: Kind = None,
    force: Annotated[
        bool, typer.Option("--force", help="Requeue the records even if they would be rejected again.")
    ] = False,
    dry_run: DryRun = False,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Requeue the record of one dead letter with another payload, or edit and requeue all that match, each at most once."""
    edits = _edits(sets or [], renames or [], removed or [], numbers or [], replaced or [])
    wanted = _wanted(reason, step, since, until, kind)
    how = {"force": str(force).lower(), "dry_run": str(dry_run).lower()}
    if (payload is None) == (not edits):
        raise typer.BadParameter("pass a file with --payload, or edits such as --set", param_hint="--payload")
    if payload is not None:
        if letter is None or wanted:
            raise typer.BadParameter(
                "a payload is for one dead letter; name it, without filters", param_hint="--payload"
            )
        with connect(data_dir, url, token_file) as client:
            answer = client.repair_dead_letter(job, letter, payload.read(), **how)
        show(answer, as_json, lambda: [Text(display.repair_summary(answer))])
        return
    if letter is not None:
        if not letter.isdecimal() or wanted:
            raise typer.BadParameter("for edits, pass the number of one dead letter, or filters", param_hint="letter")
        wanted = {"after": int(letter) - 1, "before": int(letter) + 1}
    with connect(data_dir, url, token_file) as client, waiting(f"repair of dead letters of job {job}") as report:
        total = piece = client.repair_dead_letters(job, edits, **wanted, **how)
        repairs = piece["repairs"]
        while piece["next"]:
            report("dead letters looked at", done=total["matched"])
            piece = client.repair_next(piece["next"], edits)
            total = _sum(total, piece)
            repairs += piece["repairs"]
    repairs = sorted(repairs, key=lambda one: one["outcome"] == "accepted")[:_REPAIRS_SHOWN]
    total = {**total, "next": None, "repairs": repairs, "notes": display.replay_notes(job, total)}
    show(total, as_json, lambda: [*display.replay_tables(total), display.repairs_table(repairs)])


def _edits(
    sets: list[str], renames: list[str], removed: list[str], numbers: list[str], replaced: list[str]
) -> list[JsonObject]:
    """Return the edits of the options. Raises BadParameter."""
    edits: list[JsonObject] = []
    edits += [{"edit": "replace", "field": old, "to": new} for old, new in _pairs("--replace", replaced)]
    edits += [{"edit": "rename", "field": old, "to": new} for old, new in _pairs("--rename", renames)]
    edits += [{"edit": "number", "field": one} for one in numbers]
    for name, value in _pairs("--set", sets):
        try:
            edits.append({"edit": "set", "field": name, "value": json.loads(value)})
        except ValueError as error:
            raise typer.BadParameter(
                f"{value!r} isn't JSON; a string needs quotes, as in '{name}=\"{value}\"'", param_hint="--set"
            ) from error
    return edits + [{"edit": "remove", "field": one} for one in removed]


def _pairs(option: str, texts: list[str]) -> list[tuple[str, str]]:
    """Return the parts of each value before and after its first `=`. Raises BadParameter."""
    pairs = [(one, *one.partition("=")) for one in texts]
    for one, name, equals, _ in pairs:
        if not equals or not name:
            raise typer.BadParameter(f"{one!r} has no name and value with = between them", param_hint=option)
    return [(name, value) for _, name, _, value in pairs]


def _wanted(
    reason: str | None, step: str | None, since: str | None, until: str | None, kind: str | None
) -> dict[str, str | int]:
    if reason is not None and reason not in (reasons := get_args(DeadLetterReason)):
        raise typer.BadParameter(
            f"no dead letter has the reason {reason!r}{did_you_mean(reason, reasons)}", param_hint="--reason"
        )
    parameters = {
        "reason": reason,
        "step": step,
        "since_ms": parse_time(since, "--since"),
        "until_ms": parse_time(until, "--until"),
        "kind": kind,
    }
    return {name: value for name, value in parameters.items() if value is not None}


def _sum(total: JsonObject, piece: JsonObject) -> JsonObject:
    """Return the sums of both counts."""

    def added(name: str, value: object) -> object:
        if isinstance(value, dict):
            return dict(Counter(value) + Counter(piece[name]))
        return value + piece[name] if isinstance(value, int) and not isinstance(value, bool) else value

    return {name: added(name, value) for name, value in total.items()}
