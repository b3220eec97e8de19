"""Commands for notices. `strandline apply` registers and changes them."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from strandline.core.errors import TransientError
from strandline.services.cli.display import show_time, table_of
from strandline.services.cli.options import AsJson, DataDir, TokenFile, Url, connect, parse_time
from strandline.services.cli.output import AnsweredError, JsonObject, show, waiting

notice_app = typer.Typer(help="Notices: messages to people when something is wrong.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Name of the notice.")]
_POLL_S = 0.2


@notice_app.command("list", epilog="Example: strandline notice list")
def list_notices(
    data_dir: DataDir = None, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """List all notices."""
    with connect(data_dir, url, token_file) as client:
        answer = client.get("/v1/notices")
    show(answer, as_json, lambda: [_notices_table(answer["notices"])])


@notice_app.command("show", epilog="Example: strandline notice show night")
def show_notice(
    name: Name, data_dir: DataDir = None, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """Show the problems of a notice, and its newest messages with their delivery."""
    with connect(data_dir, url, token_file) as client:
        answer = client.notice(name)
    show(answer, as_json, lambda: _notice_tables(answer))


@notice_app.command("test", epilog="Example: strandline notice test night")
def send_test_message(
    name: Name,
    timeout: Annotated[float, typer.Option(min=0, help="Maximum time to wait in seconds.")] = 30.0,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Send a test message to each channel, and wait until the receivers have confirmed it."""
    with connect(data_dir, url, token_file) as client, waiting(f"testing notice {name}"):
        numbers = client.test_notice(name)["messages"]
        until_s = time.monotonic() + timeout
        while True:
            shown = client.notice(name)
            messages = [one for one in shown["messages"] if one["number"] in numbers]
            if all(_has_outcome(one) for one in messages) or time.monotonic() > until_s:
                break
            time.sleep(_POLL_S)
    answer = {"notice": name, "messages": messages}
    unsent = [one for one in messages if one["sent_ms"] is None]
    if unsent:
        reasons = "; ".join(f"{one['channel']}: {one['error'] or 'no outcome yet'}" for one in unsent)
        raise AnsweredError(
            answer, TransientError(f"notice {name}: {reasons}. It is sent again; see: strandline notice show {name}")
        )
    show(answer, as_json, lambda: [Text(f"{one['channel']}: confirmed") for one in messages])


@notice_app.command("mute", epilog="Example: strandline notice mute night --for 2h")
def mute_notice(
    name: Name,
    duration: Annotated[str | None, typer.Option("--for", help="Duration, as 2h.")] = None,
    until: Annotated[str | None, typer.Option(help="End of muting (ISO 8601; UTC if it names no zone).")] = None,
    off: Annotated[bool, typer.Option("--off", help="End muting now.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Hold back the messages of a notice. What happens in between is reported, joined, at the end."""
    if sum(given is not None for given in (duration, until)) + off != 1:
        raise typer.BadParameter("pass one of --for, --until, and --off")
    until_ms = parse_time(until, "--until")
    if duration is not None:
        until_ms = time.time_ns() // 1_000_000 + _duration_ms(duration)
    with connect(data_dir, url, token_file) as client:
        answer = client.mute_notice(name, until_ms)
    said = "is not muted" if until_ms is None else f"is muted until {show_time(until_ms)}"
    show(answer, as_json, lambda: [Text(f"notice {name} {said}")])


@notice_app.command("delete", epilog="Example: strandline notice delete night")
def delete_notice(
    name: Name, data_dir: DataDir = None, url: Url = None, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """Delete a notice, its problems, and its messages."""
    with connect(data_dir, url, token_file) as client:
        answer = client.delete_notice(name)
    show(answer, as_json, lambda: [Text(f"notice {name} is deleted")])


def _duration_ms(text: str) -> int:
    from strandline.core.times.durations import parse_duration_ms

    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise typer.BadParameter(f"--for: {error}") from error


def _has_outcome(message: JsonObject) -> bool:
    return message["sent_ms"] is not None or bool(message["error"]) or message["merged_into"] is not None


def _notices_table(notices: list[JsonObject]) -> Table:
    return table_of(
        ("NOTICE", "#OPEN", "#UNSENT", "CONDITIONS", "CHANNELS", "MUTED UNTIL"),
        (
            (
                one["name"],
                str(one["open_problems"]),
                Text(str(one["unsent_messages"]), style="red" if one["failing"] else ""),
                ", ".join(one["conditions"]),
                ", ".join(one["channels"]),
                show_time(one["muted_until_ms"]),
            )
            for one in notices
        ),
    )


def _notice_tables(notice: JsonObject) -> list[Any]:
    shown: list[Any] = [_notices_table([notice])]
    if notice["failing"]:
        shown.append(Text(f"not confirmed: {notice['failing']}", style="red"))
    if notice["problems"]:
        shown += [Text(""), table_of(("SINCE", "UNTIL", "PROBLEM", "REPORTED"), map(_problem_row, notice["problems"]))]
    if notice["messages"]:
        headings = ("MADE", "#NUMBER", "CHANNEL", "TITLE", "#ATTEMPTS", "STATE")
        shown += [Text(""), table_of(headings, map(_message_row, notice["messages"]))]
    return shown


def _problem_row(problem: JsonObject) -> tuple[str, ...]:
    ended = "open" if problem["ended_ms"] is None else show_time(problem["ended_ms"])
    return show_time(problem["since_ms"]), ended, problem["title"], show_time(problem["reported_ms"])


def _message_row(message: JsonObject) -> tuple[str, ...]:
    state = f"not confirmed: {message['error']}" if message["error"] else "waits"
    if message["sent_ms"] is not None:
        state = f"confirmed {show_time(message['sent_ms'])}"
    elif message["merged_into"] is not None:
        state = f"in summary {message['merged_into']}"
    elif message["given_up_ms"] is not None:
        state = f"given up: {message['error']}"
    return (
        show_time(message["made_ms"]),
        str(message["number"]),
        message["channel"],
        message["content"]["title"],
        str(message["attempts"]),
        state,
    )
