"""The command line against the real API over doubles: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unicodedata import category

import httpx
import pytest
import typer
from rich.console import Console
from rich.text import Text

from strandline.core.documents import read_documents
from strandline.core.streams.stream import StreamSpec
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Desired, JobState
from strandline.log.kafka_status import StoredDeadLetter
from strandline.services.cli import commands as command_line
from strandline.services.cli.display import facts_table, show_time, table_of
from strandline.services.cli.output import printable, waiting
from strandline.services.cli.result_verbs import _table as series_table
from strandline.services.doctor.finding import ok, wrong
from strandline.services.embedded.addresses import StackAddresses
from strandline.services.jobs import result_records
from strandline.services.jobs.dead_letters import DeadLetters
from strandline.services.jobs.explanation import JobFacts, explain
from tests.support.control import BOTH, PIPELINE, STREAM, Api, IdleSupervisor, ObedientSupervisor, serving
from tests.support.ledgers import a_checkpoint, a_slice
from tests.support.waiting import stretched
from tests.unit.test_explanation import CASES as EXPLANATIONS

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Said:
    """The output of a verb, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Say = Callable[..., Said]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Say:
    """Runs the command line with these arguments, away from any stack of this machine."""
    monkeypatch.setenv("STRANDLINE_DATA_DIR", str(tmp_path / "no-stack"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("STRANDLINE_URL", raising=False)

    def say(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["strandline", *arguments])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        captured = capsys.readouterr()
        code = ended.value.code
        return Said(code if isinstance(code, int) else 0 if code is None else 1, captured.out, captured.err)

    return say


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield ledger
    ledger.close()


@pytest.fixture
def api(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, say: Say) -> Iterator[Api]:
    """A served API, whose address the command line finds in the environment."""
    api = Api(ledger, ObedientSupervisor(ledger))
    with serving(api.app) as url:
        monkeypatch.setenv("STRANDLINE_URL", url)
        yield api


@pytest.fixture
def farm(tmp_path: Path) -> str:
    return _file(tmp_path, "farm.yaml", BOTH)


def _file(directory: Path, name: str, text: str) -> str:
    (directory / name).write_text(text, encoding="utf-8")
    return str(directory / name)


def test_apply_says_what_became_of_each_document(api: Api, say: Say, farm: str) -> None:
    said = say("apply", farm)
    assert (said.code, said.err) == (0, "")
    assert said.out == "stream turbines: created (version 1)\npipeline power: created (version 1)\n"
    said = say("apply", farm, "--json")
    assert [one["outcome"] for one in said.json["applied"]] == ["unchanged", "unchanged"]


def test_apply_judges_several_files_together_and_names_the_right_one(api: Api, say: Say, tmp_path: Path) -> None:
    pipeline = _file(tmp_path, "pipeline.yaml", "# why\n" + PIPELINE.replace("max(power)", "max(pwer)"))
    stream = _file(tmp_path, "stream.yaml", STREAM.rstrip("\n"))
    said = say("apply", pipeline, stream)
    assert (said.code, said.out) == (1, "")
    assert re.match(rf"{re.escape(pipeline)}:6: steps\[0\]\.window\.aggregate\.peak: .*pwer", said.err)
    said = say("apply", stream, pipeline)
    assert re.match(rf"{re.escape(pipeline)}:6: ", said.err)
    assert api.ledger.streams() == []


def test_broken_yaml_names_its_line(api: Api, say: Say, tmp_path: Path) -> None:
    broken = _file(tmp_path, "broken.yaml", "stream: turbines\nschema: {a: long\n")
    said = say("apply", broken)
    assert said.code == 1
    assert said.err.startswith(f"{broken}:")


def test_job_verbs_wait_until_it_is_so(api: Api, say: Say, farm: str) -> None:
    say("apply", farm)
    assert say("job", "status", "power", "--json").json["state"] == "running"
    assert say("job", "restart", "power", "--json").json["epoch"] == 2
    assert say("job", "stop", "power", "--json").json["state"] == "stopped"
    assert say("job", "start", "power", "--json").json["state"] == "running"
    assert say("job", "stop", "power", "--drain", "--json").json["state"] == "drained"
    assert say("job", "stop", "power").code == 0
    assert api.ledger.job("power").desired is Desired.STOPPED


def test_waiting_ends_at_the_deadline(ledger: Ledger, say: Say, farm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api(ledger, IdleSupervisor())
    monkeypatch.setattr(api.supervisor, "start", lambda: None)
    monkeypatch.setattr(api.supervisor, "close", lambda: None)
    with serving(api.app) as url:
        say("apply", farm, "--url", url)
        said = say("job", "stop", "power", "--timeout", "0.3", "--url", url)
    assert (said.code, said.out) == (1, "")
    assert "job power is created and not stopped after 0.3 s" in said.err


def test_start_of_a_job_that_fails_says_why(
    ledger: Ledger, say: Say, farm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(ObedientSupervisor):
        def wake(self) -> None:
            for job in ledger.jobs():
                ledger.move_job(job.name, JobState.FAILED, "the log no longer holds offset 7")

    api = Api(ledger, Failing(ledger))
    with serving(api.app) as url:
        monkeypatch.setenv("STRANDLINE_URL", url)
        say("apply", farm)
        said = say("job", "start", "power")
    assert said.code == 1
    assert "the log no longer holds offset 7" in said.err


def test_stop_of_a_failed_job_waits_for_it_to_rest(ledger: Ledger, say: Say, farm: str) -> None:
    class Slow(ObedientSupervisor):
        def wake(self) -> None:
            if ledger.job("power").desired is Desired.STOPPED:
                later = threading.Timer(0.5, super().wake)
                later.start()

    api = Api(ledger, Slow(ledger))
    with serving(api.app) as url:
        say("apply", farm, "--url", url)
        ledger.move_job("power", JobState.FAILED, "for a reason")
        said = say("job", "stop", "power", "--json", "--url", url)
    assert (said.code, said.json["state"]) == (0, "stopped"), said.err


def test_where_the_records_of_a_result_stand(
    api: Api, say: Say, farm: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("apply", farm)
    ledger.plan_slice(a_slice(1, ledger.job("power").epoch))
    ledger.commit_checkpoint(a_checkpoint(1, ledger.job("power").epoch, latest_event_ms=70_000, closes_ms=60_000))
    origin = {"stage": "per_minute", "version": 1, "emission": 1}
    window = {"start": "1970-01-01T00:00:00.000Z", "end": "1970-01-01T00:01:00.000Z"}
    answer = {"hits": {"hits": [{"_source": {"window": window, "strandline": origin}}]}}
    monkeypatch.setattr(result_records, "request", lambda *_, **__: answer)
    said = say("results", "turbine-minute", "--records", "some-id")
    assert said.code == 0, said.err
    for words in ("some-id", "00:00:00 to 1970-01-01 00:01:00 UTC", "slices 1 to 1", "turbines", "20"):
        assert words in said.out
    told = say("results", "turbine-minute", "--records", "some-id", "--json").json
    assert [(one["partition"], one["offset_next"]) for one in told["ranges"]] == [(0, 10), (1, 20)]


def test_kibanas_objects_link_to_the_address_that_is_given(api: Api, say: Say, farm: str) -> None:
    say("apply", farm)
    link = "http://farm.example/v1/results/turbine-minute/{{value}}/records"
    for source in ("power", farm):
        assert link in say("kibana", "export", source, "--links", "http://farm.example").out
        assert link not in say("kibana", "export", source).out
    assert say("kibana", "export", "power", "--links", "javascript:alert(1)").code == 1


def test_tables_for_people(api: Api, say: Say, farm: str) -> None:
    say("apply", farm)
    letter = StoredDeadLetter(
        3, 5, {"stream": "turbines", "partition": "1", "offset": "7", "reason": "decode"}, b"[red]{x"
    )
    api.log.letters = [letter]
    for arguments, words in (
        (("job", "list"), ("power", "running")),
        (("job", "status", "power"), ("lag in records", "300", "restart")),
        (("stream", "list"), ("turbines", "1w")),
        (("stream", "show", "turbines"), ("OFFSET NEXT", "205", "timestamp", "$.extra", "50.0%")),
        (
            ("stream", "infer", "--from-topic", "turbines"),
            ("stream: turbines", "2 records of the sample result in 2 rows"),
        ),
        (("dead-letters", "list", "power"), ("decode", "[red]{x")),
        (("dead-letters", "show", "power", "3"), ("decode", "[red]{x")),
    ):
        said = say(*arguments)
        assert (said.code, said.err) == (0, "")
        assert [word for word in words if word not in said.out] == []
        assert say(*arguments, "--json").json


def test_unknown_names_are_one_sentence(api: Api, say: Say) -> None:
    for arguments in (("job", "status", "none"), ("job", "stop", "none"), ("stream", "show", "no/such")):
        said = say(*arguments)
        assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)


def test_no_stack_is_one_sentence(say: Say, tmp_path: Path) -> None:
    said = say("job", "list")
    assert (said.code, said.out) == (1, "")
    assert "strandline up" in said.err
    said = say("job", "list", "--url", "http://127.0.0.1:9")
    assert (said.code, said.err.count("\n")) == (1, 1)
    assert "does not respond" in said.err
    assert say("job", "list", "--url", "nonsense").code == 1


def test_data_dir_leads_to_the_stack(api: Api, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = os.environ["STRANDLINE_URL"]
    monkeypatch.delenv("STRANDLINE_URL")
    addresses = StackAddresses.of(tmp_path, 0)
    (tmp_path / "stack.json").write_text(json.dumps(vars(addresses) | {"api_url": url}), encoding="utf-8")
    assert say("job", "list", "--data-dir", str(tmp_path), "--json").json == {"jobs": []}


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("job",),
        ("job", "stop"),
        ("apply",),
        ("apply", "/no/such/file"),
        ("job", "list", "--nonsense"),
        ("dead-letters", "list", "power", "--reason", "lates"),
        ("dead-letters", "requeue", "power", "--reason", "duplicate"),
    ],
    ids=" ".join,
)
def test_wrong_use_is_2(say: Say, arguments: tuple[str, ...]) -> None:
    assert say(*arguments).code == 2


def test_wrong_settings_are_one_sentence(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRANDLINE_HTTP_PORT", "many")
    said = say("job", "list")
    assert said.code == 1
    assert said.err.startswith("STRANDLINE_HTTP_PORT is wrong")


def test_check_needs_no_stack_when_the_stream_is_there(say: Say, farm: str, tmp_path: Path) -> None:
    said = say("pipeline", "check", farm)
    assert (said.code, said.err) == (0, "")
    assert "per_minute" in said.out
    pipeline, stream = _file(tmp_path, "p.yaml", PIPELINE), _file(tmp_path, "s.yaml", STREAM)
    assert say("pipeline", "check", pipeline, "--stream-file", stream, "--json").json["valid"] is True


def test_check_of_a_wrong_pipeline_is_1_and_names_the_line(say: Say, tmp_path: Path) -> None:
    stream = _file(tmp_path, "s.yaml", STREAM)
    wrong = _file(tmp_path, "p.yaml", PIPELINE.replace("max(power)", "max(pwer)"))
    said = say("pipeline", "check", wrong, "--stream-file", stream, "--json")
    assert said.code == 1
    assert (said.json["problems"][0]["source"], said.json["problems"][0]["line"]) == (wrong, 5)
    assert said.err.startswith(f"{wrong}:5: ")


def test_check_asks_the_stack_about_a_registered_stream(api: Api, say: Say, tmp_path: Path) -> None:
    pipeline = _file(tmp_path, "p.yaml", PIPELINE)
    said = say("pipeline", "check", pipeline)
    assert (said.code, "there is no stream 'turbines'" in said.err) == (1, True)
    say("apply", _file(tmp_path, "s.yaml", STREAM))
    assert say("pipeline", "check", pipeline).code == 0


def test_without_a_stack_check_says_first_what_the_file_lacks(say: Say, tmp_path: Path) -> None:
    """A slip in the stream's name is far more likely than a stack that should run."""
    wrong = _file(tmp_path, "p.yaml", f"{STREAM}\n---\n{PIPELINE.replace('{stream: turbines', '{stream: turbine')}")
    said = say("pipeline", "check", wrong, "--url", "http://127.0.0.1:9")
    assert said.code == 1
    assert said.err.startswith(
        f"{wrong} contains no stream 'turbine'; did you mean 'turbines'?; a stack can have it, but the control"
    )


def test_without_a_stack_check_says_all_that_is_wrong_in_the_file(say: Say, tmp_path: Path) -> None:
    """For any stack, this must be corrected; a stack that isn't there is not asked."""
    enriched = PIPELINE.replace("steps:\n", "steps:\n  - enrich: {lookup: site, key: turbine, add: [owner]}\n", 1)
    lookup = "lookup: sites\nschema: {turbine: string, owner: string}\nkey: turbine\nrows: []\n"
    reads_another = PIPELINE.replace("{stream: turbines", "{stream: farm").replace("pipeline: ", "pipeline: other-")
    wrong = enriched.replace("max(power)", "maxx(power)")
    file = _file(tmp_path, "p.yaml", "---\n".join((lookup, wrong, reads_another, STREAM)))
    said = say("pipeline", "check", file, "--json")
    assert said.code == 1
    told = {one["pointer"]: one["detail"] for one in said.json["problems"]}
    assert "unknown function 'maxx'" in next(told[one] for one in told if one.endswith("peak"))
    assert told["steps[0].enrich.lookup"] == (
        "there is no lookup 'site'; did you mean 'sites'?; the stack may have it, but no stack was reached"
    )
    assert told["input.stream"].startswith("there is no stream 'farm'")
    right = _file(tmp_path, "right.yaml", "---\n".join((lookup, enriched, STREAM)))
    said = say("pipeline", "check", right)
    assert said.err.startswith(
        f"{right} contains no lookup 'site'; did you mean 'sites'?; a stack can have it, but no stack was ever started in"
    )


def test_a_stream_in_a_file_of_its_own_is_named_alike_by_every_verb(say: Say, tmp_path: Path) -> None:
    pipeline, stream = _file(tmp_path, "p.yaml", PIPELINE), _file(tmp_path, "s.yaml", STREAM)
    records = _file(tmp_path, "r.ndjson", "")
    expected = _file(tmp_path, "e.ndjson", "")
    for verb in (
        ("check", pipeline),
        ("explain", pipeline),
        ("run", pipeline, "--input", records),
        ("test", pipeline, "--input", records, "--expect", expected),
    ):
        said = say("pipeline", *verb, "--stream-file", stream)
        assert (said.code, said.err) == (0, ""), (verb, said)
    said = say("pipeline", "test", pipeline, "--stream-file", stream)
    assert (said.code, "is for --input" in said.err) == (2, True)


def test_a_program_is_no_document(say: Say, tmp_path: Path) -> None:
    said = say("pipeline", "check", _file(tmp_path, "health.py", "from strandline import stream\n"))
    assert (said.code, "is Python, which must be run" in said.err) == (1, True)


def leaf_commands() -> list[tuple[str, ...]]:
    """Every verb by its words."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        below = getattr(command, "commands", None)
        if below is None:
            yield words
        for name, one in (below or {}).items():
            yield from walk(one, (*words, name))

    return list(walk(typer.main.get_command(command_line.app), ()))


@pytest.mark.parametrize("words", leaf_commands(), ids=" ".join)
def test_every_verb_helps_with_an_example_that_parses(
    say: Say, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # the examples name files of the repository
    helped = say(*words, "-h")
    assert (helped.code, helped.err) == (0, "")
    assert helped.out == say(*words, "--help").out
    (example,) = re.findall(r"^ Example: strandline (.*)$", helped.out, re.MULTILINE)
    assert parse(example)[-1:] == words[-1:]


def test_every_verb_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| verb \|.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert [words for words in leaf_commands() if not re.search(rf"`{' '.join(words)}\b", table)] == []


def test_open_prints_the_address_of_the_console_and_opens_it(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def launch(address: str) -> int:
        opened.append(address)
        return 0

    monkeypatch.setattr(typer, "launch", launch)
    assert say("open", "--url", "http://127.0.0.1:18080").out == "http://127.0.0.1:18080/\n"
    assert opened == ["http://127.0.0.1:18080/"]
    answer = json.loads(say("open", "--url", "http://127.0.0.1:18080", "--json").out)
    assert answer == {"page": "http://127.0.0.1:18080/", "token_file": None, "opened": False}
    assert len(opened) == 1, "programs only read the address"
    assert say("open").code == 1, "there is no stack"


def test_every_verb_that_asks_a_control_service_takes_a_file_with_the_token(say: Say, tmp_path: Path) -> None:
    """Except `doctor`, which reads its health only, and `open`, which only prints its address."""
    lacking = []
    for words in leaf_commands():
        command = typer.main.get_command(command_line.app)
        for word in words:
            command = command.commands[word]
        names = {parameter.name for parameter in command.params}
        lacking += [words] if "url" in names and "token_file" not in names else []
    assert sorted(lacking) == [("doctor",), ("open",)]
    for verb in (("ingest", "turbines", __file__), ("pipeline", "preview", "power"), ("pipeline", "explain", "power")):
        said = say(*verb, "--url", "http://127.0.0.1:9", "--token-file", str(tmp_path / "none"))
        assert (said.code, f"can't read the token file {tmp_path / 'none'}" in said.err) == (1, True)


def parse(line: str) -> tuple[str, ...]:
    """The verb of a command line, whose options and arguments are checked, existing files included."""
    arguments, words = shlex.split(line), []
    command, context = typer.main.get_command(command_line.app), None
    while hasattr(command, "commands"):
        words.append(arguments.pop(0))
        context = command.make_context(words[-1], [], parent=context, resilient_parsing=True)
        command = command.commands[words[-1]]
    command.make_context(words[-1], arguments, parent=context)
    return tuple(words)


def test_the_commands_of_the_readme_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line parses, its files are there, and the sample has the fields that its stream declares."""
    monkeypatch.chdir(ROOT)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    \.venv/bin/strandline (.*)$", readme, re.MULTILINE)
    assert [parse(line)[0] for line in lines] == ["pipeline", "up", "apply", "job", "audit", "down"]
    (sample,) = re.findall(r"--data-binary @(\S+)", readme)
    stream, _ = read_documents((ROOT / "examples" / "nab.yaml").read_bytes(), "nab.yaml")
    declared = set(StreamSpec.parse(stream).fields)
    records = [json.loads(line) for line in (ROOT / sample).read_text(encoding="utf-8").splitlines()]
    assert len(records) == 576 and all(set(record) == declared for record in records)


@pytest.mark.parametrize("case", EXPLANATIONS, ids=lambda case: case[1])
def test_the_commands_that_an_explanation_recommends_are_right(case: tuple[JobFacts, str, str]) -> None:
    """A command is the words of a verb, the name of the job or stream, and options; prose follows it."""
    step = explain(case[0]).next
    commands = re.findall(
        r"\bstrandline ((?:[a-z-]+ )+?(?:power|turbines)(?: --\w+(?: (?:earliest|result|\d[\w:-]*))?)*)", step
    )
    assert len(commands) == len(re.findall(r"\bstrandline ", step)), step
    for command in commands:
        parse(command)


@pytest.mark.parametrize(
    "line",
    [
        "pipeline show {file}",
        *(
            pytest.param(line, marks=pytest.mark.long)
            for line in ("pipeline check {file} --json", "pipeline check {file}", "pipeline check {wrong} --json")
        ),
    ],
)
def test_a_reader_that_has_seen_enough_ends_a_verb_without_a_word(tmp_path: Path, line: str) -> None:
    """For example `| head`; also if all output is still buffered when the verb is done."""
    file = _file(tmp_path, "a.yaml", BOTH)
    wrong = _file(tmp_path, "b.yaml", BOTH.replace("max(power)", "maxx(power)"))
    reading, writing = os.pipe()
    os.close(reading)
    verb = [sys.executable, "-m", "strandline.services.cli.commands", *line.format(file=file, wrong=wrong).split()]
    held = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(verb, stdout=writing, stderr=subprocess.PIPE, env=held, check=False, timeout=stretched(60))
    os.close(writing)
    told = done.stderr.decode()
    assert (done.returncode, "BrokenPipe" in told, "Traceback" in told) == (1, False, False), told


def test_groups_help_with_h(say: Say) -> None:
    for words in ((), ("job",), ("stream",), ("dead-letters",), ("pipeline",)):
        assert say(*words, "-h").code == 0
    assert "3 an audit found differences" in say("-h").out


def test_version(say: Say) -> None:
    said = say("--version")
    assert (said.code, said.out) == (0, f"strandline {version('strandline')}\n")


def test_completion_offers_the_verbs() -> None:
    """In a process of its own, as a shell asks."""
    strandline = str(Path(sys.executable).with_name("strandline"))
    asks = {"_STRANDLINE_COMPLETE": "complete_bash", "COMP_WORDS": "strandline job st", "COMP_CWORD": "2"}
    answer = subprocess.run([strandline], env=os.environ | asks, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["status", "start", "stop"]
    shown = subprocess.run(
        [strandline, "--show-completion", "bash"],
        env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "complete -o default -F _strandline_completion strandline" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("job", "status", "none"), 1, "not_found"),
        (("job", "stop", "none"), 1, "not_found"),
        (("stream", "show", "none"), 1, "not_found"),
        (("dead-letters", "show", "none", "0"), 1, "not_found"),
        (("job", "list", "--url", "http://127.0.0.1:9"), 1, "control_unavailable"),
        (("down", "--data-dir", "/no/such/directory"), 1, "stack"),
        (("job", "stop"), 2, "wrong_use"),
        (("job", "nonsense"), 2, "wrong_use"),
        (("job", "backfill", "power"), 2, "wrong_use"),
        (("apply", "/no/such/file"), 2, "wrong_use"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_with_json_an_error_is_one_object(
    api: Api, say: Say, arguments: tuple[str, ...], code: int, error: str
) -> None:
    said = say(*arguments, "--json")
    assert said.code == code
    assert said.json["error"]["code"] == error
    assert said.json["error"]["message"] in said.err, "and stderr has the sentence as always"


def test_the_doctor_says_on_stderr_that_something_is_wrong(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [ok("Kafka", "answers"), wrong("ledger", "it is [gone]", "correct it")]
    monkeypatch.setattr("strandline.services.doctor.finding.examine", lambda *_: found)
    said = say("doctor")
    assert (said.code, said.out) == (1, "✓ Kafka: answers\n✗ ledger: it is [gone]\n    correct it\n")
    assert said.err.endswith(
        "1 wrong, 0 to look at; follow the remedy below each of them, then run strandline doctor again\n"
    )
    told = say("doctor", "--json").json
    assert told["error"] == {"code": "doctor_found_wrong", "message": said.err.splitlines()[-1]}
    assert [one["subject"] for one in told["findings"]] == ["Kafka", "ledger"]
    found.pop()
    said = say("doctor")
    assert (said.code, said.out, "wrong" in said.err) == (0, "✓ Kafka: answers\nall is well\n", False)


def test_what_the_operating_system_refuses_is_a_sentence(api: Api, say: Say, tmp_path: Path) -> None:
    directory = tmp_path / "taken"
    directory.mkdir()
    test = ROOT / "examples" / "tests" / "nab.yaml"
    said = say("pipeline", "test", str(test), "--junit", str(directory), "--json")
    reason = f"can't open {directory}: Is a directory; check that"
    assert said.code == 1 and said.err.startswith(reason) and said.err.count("\n") == 1
    assert said.json["error"] == {"code": "os_error", "message": said.err.rstrip("\n")}


@pytest.mark.parametrize(
    "verb",
    [
        ("run", "examples/nab.yaml", "--input", "examples/readings.ndjson"),
        ("test", "examples/tests/nab.yaml"),
        ("show", "examples/nab.yaml"),
    ],
    ids=lambda verb: verb[0],
)
def test_verbs_of_files_take_the_options_of_a_stack_and_ignore_them(say, verb, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    said = say("pipeline", *verb, "--data-dir", str(tmp_path / "none"), "--url", "http://nowhere.invalid", "--json")
    assert said.code == 0, said.err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "verb", [("pipeline", "test", "examples/tests/nab.yaml", "--junit"), ("results", "turbine-minute", "--html")]
)
def test_a_file_in_a_directory_that_is_not_there_is_refused_before_the_work(
    api: Api, say: Say, verb: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    said = say(*verb, "/no/such/file", "--json")
    assert said.code == 1
    assert said.json["error"]["message"].startswith("can't write /no/such/file: the directory /no/such doesn't exist;")
    assert said.err == said.json["error"]["message"] + "\n"


def test_with_json_a_wrong_document_names_its_problems(api: Api, say: Say, tmp_path: Path) -> None:
    wrong = _file(tmp_path, "wrong.yaml", STREAM + "---\n" + PIPELINE.replace("max(power)", "max(pwer)"))
    for verb in (("apply",), ("apply", "--plan"), ("pipeline", "check")):
        answer = say(*verb, wrong, "--json").json
        assert answer["error"]["code"] == "invalid_document"
        assert answer["problems"][0]["source"] == wrong
        assert "pwer" in answer["problems"][0]["detail"]


def test_verbs_that_wait_say_so_off_a_terminal(api: Api, say: Say, farm: str) -> None:
    say("apply", farm)
    said = say("job", "stop", "power", "--drain", "--json")
    assert said.json["state"] == "drained"
    assert said.err.splitlines()[-1].startswith("job power is drained")


def test_a_spinner_turns_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with waiting("waiting until job [power] is running") as tell:
        tell("job [power] is starting", ", 7 records behind")
        tell("job [power] is running", done=3, total=8)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "job [power] is running" in captured.err and "3/8" in captured.err


def test_lines_off_a_terminal_are_one_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting("never shown") as tell:
        for lag in (9, 8, 7):
            tell("job power is running", f", {lag} records behind")
        tell("reading", done=1_000, total=2_000)
    assert capsys.readouterr().err == "job power is running, 9 records behind\nreading, 1,000 of 2,000\n"


def test_a_job_is_reset_and_deleted_and_then_its_stream(api: Api, say: Say, farm: str) -> None:
    say("apply", farm)
    refused = say("job", "delete", "power")
    assert refused.code == 1 and "strandline job stop power" in refused.err
    say("job", "stop", "power")
    assert say("job", "reset", "power", "--to", "yesterday").code == 2
    assert say("job", "reset", "power", "--to", "latest", "--json").json["generation"] == 2
    said = say("job", "reset", "power", "--to", "1970-01-01T00:00:00.150Z")
    assert said.out.startswith("job power was reset to 1970-01-01T00:00:00.150Z, with generation 3 of results")
    refused = say("stream", "delete", "turbines")
    assert refused.code == 1 and "strandline job delete power" in refused.err
    said = say("job", "delete", "power")
    assert said.out == "job power is deleted; its results (none) are kept, its dead letters kept\n"
    assert say("stream", "delete", "turbines", "--keep-topic").out == "stream turbines is deleted; its topic is kept\n"
    assert say("job", "status", "power").code == 1


def test_dead_letters_are_listed_by_reason_and_counted(api: Api, say: Say, farm: str) -> None:
    say("apply", farm)
    headers = {"stream": "turbines", "partition": "0", "step": "decode"}
    api.log.letters = [
        StoredDeadLetter(n, 1_000 * n, {**headers, "offset": str(n), "reason": ("decode", "late")[n % 2]}, b"x")
        for n in range(5)
    ]
    late = say("dead-letters", "list", "power", "--reason", "late", "--json").json["dead_letters"]
    assert [one["number"] for one in late] == [1, 3]
    since = say("dead-letters", "list", "power", "--since", "1970-01-01T00:00:03Z", "--json").json["dead_letters"]
    assert [one["number"] for one in since] == [3, 4]
    counts = say("dead-letters", "list", "power", "--counts", "--json").json
    assert counts == {"dead_letters": 5, "reasons": {"decode": 3, "late": 2}, "steps": {"decode": 5}, "next": None}
    assert re.search(r"late +2\n", say("dead-letters", "list", "power", "--counts").out)
    said = say("dead-letters", "repair", "power", "turbines/0/99", "--payload", __file__)
    assert said.code == 1 and "dead-letters list power" in said.err


def test_dead_letters_are_edited_in_a_dry_run(api: Api, say: Say, farm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeadLetters, "_originals", lambda *_: {})
    say("apply", farm)
    headers = {"stream": "turbines", "partition": "0", "step": "decode", "reason": "schema"}
    value = b'{"turbine": "T1", "ts": 1, "power": "%s"}'
    api.log.letters = [
        StoredDeadLetter(
            n, 1_000, {**headers, "offset": str(n), "message": f'power: got "{text}"'}, value % text.encode()
        )
        for n, text in enumerate(("1.5", "ERR", "2"))
    ]
    edited = say("dead-letters", "repair", "power", "--number", "power", "--dry-run", "--json").json
    assert (edited["matched"], edited["requeued"], edited["skipped"]) == (3, 2, {"not_edited": 1})
    assert json.loads(edited["repairs"][0]["value"])["power"] == 1.5
    kind = say("dead-letters", "list", "power", "--json").json["dead_letters"][0]["kind"]
    said = say("dead-letters", "repair", "power", "--kind", kind, "--set", "power=null", "--dry-run")
    assert "3 would be rejected again after the edits" in said.out, said.out
    assert say("dead-letters", "repair", "power", "1", "--set", "power=4", "--dry-run", "--json").json["requeued"] == 1
    for unusable in (["--set", "power"], ["--set", "power=ERR"], [], ["--set", "power=1", "--payload", __file__]):
        assert say("dead-letters", "repair", "power", *unusable).code == 2, unusable


HOSTILE = "a\x1b]0;b\x07c\x9bd\u202ee\u2028f\U000e0041g\r\ud800h\x7f"
"""Orders to a terminal, and what turns the order of a line round."""
SPELT = r"a\x1b]0;b\x07c\x9bd\u202ee\u2028f\U000e0041g\r\ud800h\x7f"


def shown_by(shown: Any) -> str:
    """Return what a console prints that is no terminal."""
    file = StringIO()
    Console(file=file, width=1_000).print(shown)
    return file.getvalue()


@pytest.mark.parametrize(
    "shown",
    [
        facts_table([("value", HOSTILE)]),
        table_of(("VALUE",), [(HOSTILE,)]),
        facts_table([("error", Text(HOSTILE, style="red"))]),
        series_table({"by": "id", "from_ms": 0, "to_ms": 0, "step_ms": 1, "series": [{"key": HOSTILE, "points": [[0, 1.0]]}]}),
    ],
    ids=["fact", "cell", "styled fact", "key of a series"],
)  # fmt: skip
def test_text_of_others_gives_the_terminal_no_orders(shown: Any) -> None:
    text = shown_by(shown)
    assert (
        SPELT in text or SPELT.replace(r"\x07", "").replace(r"\r", "") in text
    )  # these are dropped by Rich's Text itself


def test_plain_text_stays_as_it_is() -> None:
    text = "Grüße, 温度\t\x20\u00a0😀\nline"
    assert printable(text) == text


def test_no_verb_gives_the_terminal_orders(
    ledger: Ledger, say: Say, farm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    def is_harmless(text: str) -> bool:
        return all(one == "\n" or category(one) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for one in text)

    hostile = HOSTILE.replace("\ud800", "")
    log = tmp_path / "logs" / "runner-power.log"
    log.parent.mkdir()
    log.write_text(hostile + "\n")
    api = Api(ledger, ObedientSupervisor(ledger), data_dir=tmp_path)
    monkeypatch.setattr("strandline.services.cli.job_verbs.time", SimpleNamespace(sleep=interrupt))
    with serving(api.app) as url:
        monkeypatch.setenv("STRANDLINE_URL", url)
        say("apply", farm)
        event = ledger.record_event("note", hostile, "power")
        headers = {"stream": "turbines", "partition": "0", "step": "decode", "reason": "decode", "offset": "0"}
        api.log.letters = [StoredDeadLetter(0, 0, {**headers, "message": hostile}, hostile.encode())]
        for verb in (
            ("dead-letters", "list", "power"),
            ("dead-letters", "show", "power", "0"),
            ("job", "logs", "power"),
            ("job", "logs", "power", "--follow"),
            ("job", "events"),
            ("job", "events", "--follow", "--after", str(event.id - 1)),
        ):
            said = say(*verb)
            assert is_harmless(said.out) and r"\x9b" in said.out, verb
            as_json = say(*verb, "--json")
            assert is_harmless(as_json.out.replace("\x7f", "")) and r"\u202e" in as_json.out, verb
        assert say("dead-letters", "show", "power", "0", "--json").json["value"] == hostile
        refused = say("job", "status", hostile)
        assert is_harmless(refused.err) and r"\x9b" in refused.err


def test_a_list_that_is_cut_says_how_to_go_on(api: Api, say: Say, farm: str) -> None:
    say("apply", farm)
    headers = {"stream": "turbines", "partition": "0", "step": "decode", "reason": "decode"}
    api.log.letters = [StoredDeadLetter(n, n, {**headers, "offset": str(n)}, b"x") for n in range(5)]
    for number in range(5):
        api.ledger.record_event("note", str(number), "power")
    said = say("dead-letters", "list", "power", "--limit", "2")
    assert said.err.startswith("the list ends here, but there can be more; for the next page, pass --after 1;")
    assert say("dead-letters", "list", "power").err == ""
    said = say("job", "events", "power", "--limit", "2", "--json")
    last = said.json["events"][-1]["id"]
    assert f"--after {last}; the newest: --last N" in said.err
    said = say("job", "events", "power", "--last", "2", "--json")
    assert ([one["message"] for one in said.json["events"]], said.err) == (["3", "4"], "")


def test_a_job_is_watched_and_its_log_followed_until_interrupted(
    ledger: Ledger, say: Say, farm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "logs" / "runner-power.log"
    log.parent.mkdir()
    log.write_text("one\ntwo\nthree\n")
    api = Api(ledger, ObedientSupervisor(ledger), data_dir=tmp_path)
    looks: list[float] = []
    failing: list[Exception] = []
    request = httpx.Client.request

    def may_fail(*arguments: Any, **options: Any) -> httpx.Response:
        if failing:
            raise failing.pop()
        return request(*arguments, **options)

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 1:
            failing.append(httpx.ConnectError("refused"))  # the control service is restarted
        if len(looks) == 2:
            log.write_text("one\ntwo\nthree\nfour\n")
            ledger.set_desired("power", Desired.STOPPED)
            api.supervisor.wake()
        if len(looks) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("strandline.services.cli.job_verbs.time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(httpx.Client, "request", may_fail)
    with serving(api.app) as url:
        monkeypatch.setenv("STRANDLINE_URL", url)
        say("apply", farm)
        assert say("job", "logs", "power", "--lines", "2").out == "two\nthree\n"
        said = say("job", "status", "power", "--watch")
        assert said.code == 0
        assert [line.split(":")[0] for line in said.out.splitlines()] == ["power running", "power stopped"]
        looks.clear()
        log.write_text("one\ntwo\nthree\n")
        said = say("job", "logs", "power", "--follow", "--lines", "1")
        assert (said.code, said.out) == (0, "three\nfour\n")


def test_events_are_shown_as_they_come(ledger: Ledger, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    api, looks = Api(ledger, ObedientSupervisor(ledger)), 0

    def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise KeyboardInterrupt
        ledger.record_event("note", f"look {looks}", principal="anna")

    monkeypatch.setattr("strandline.services.cli.job_verbs.time", SimpleNamespace(sleep=sleep))
    for number in range(4):
        newest = ledger.record_event("note", str(number))
    with serving(api.app) as url:
        monkeypatch.setenv("STRANDLINE_URL", url)
        said = say("job", "events", "--follow", "--last", "2", "--json")
        assert [json.loads(line)["message"] for line in said.out.splitlines()] == ["2", "3", "look 1", "look 2"]
        looks = 2
        said = say("job", "events", "--follow", "--after", str(newest.id + 1))
        assert said.out.endswith("Z note: look 2 (by anna)\n") and said.out.count("\n") == 1


def test_a_watermark_may_be_further_than_any_year_that_can_be_written() -> None:
    assert show_time(253_402_300_799_000) == "9999-12-31 23:59:59Z"
    assert show_time(253_402_300_800_000) == "after the year 9999"
