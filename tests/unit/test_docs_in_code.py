"""docs/python.md and docs/sql.md: their code is run. What needs a platform is in tests/integration/test_client.py."""

import re
from contextlib import closing
from typing import Any

import pytest
from fastapi import FastAPI, Request

from strandline.core.documents import read_documents
from strandline.frontends.python.flow import Flow
from strandline.frontends.sql.translation import translate
from strandline.frontends.steps import window_functions
from strandline.ledger.ledger import Ledger
from strandline.log.kafka_status import StoredDeadLetter
from strandline.services.jobs.checking import check_without_stack
from tests.support.control import Api, ObedientSupervisor, serving
from tests.support.page_blocks import DOCS, blocks_of


@pytest.mark.guarantee(
    "G435",
    "The examples on the Python and SQL pages are run as they are written.",
    promise="all-forms-of-a-pipeline-agree",
)
def test_each_program_of_the_python_page_that_needs_no_platform_runs(capsys):
    names: dict[str, Any] = {}
    programs = [block for block in blocks_of("python.md", "python") if "client" not in block]
    assert len(programs) == 5
    for program in programs:
        exec(compile(program, "python.md", "exec"), names)
    said = capsys.readouterr().out
    assert "pipeline: turbine-health" in said and "['per_minute']" in said
    assert "2026-11-01T12:00:00.000Z T07 60 0.5" in said and "2026-11-01T12:01:00.000Z T07 30 0.5" in said
    assert said.endswith("decode\n")
    assert [stage.name for stage in names["farm"].check().stages] == ["per_minute", "peaks"]


def test_the_mistake_of_the_python_page_is_told_like_this():
    (program, *_) = blocks_of("python.md", "python")
    (shown, *_) = blocks_of("python.md", "text")
    names: dict[str, Any] = {}
    text = program.replace("load < 10", "lod < 10")
    exec(compile(text, "health.py", "exec"), names)
    view = None
    try:
        names["health"].check()
    except Exception as error:  # noqa: BLE001
        view = str(error)
    assert view == shown.strip()
    assert text.splitlines()[int(shown.split(":")[1]) - 1] == '    .where("lod < 10")'


def test_each_call_of_the_python_page_is_there():
    table = (DOCS / "python.md").read_text().partition("| call | says |")[2].partition("## Check")[0]
    methods = set(re.findall(r"`?\.(\w+)\(", table))
    assert methods == {name for name in dir(Flow) if not name.startswith("_")}


@pytest.mark.guarantee("G435")
def test_each_statement_of_the_sql_page_is_valid():
    texts = blocks_of("sql.md", "sql")
    assert texts
    for text in texts:
        yaml = translate(text, "sql.md").yaml
        judged = check_without_stack(yaml.encode(), "sql.md")
        assert judged is not None and judged.problems == [], judged
    kinds = [one.kind for one in read_documents(translate(texts[0], "sql.md").yaml, "sql.md")]
    assert kinds == ["stream", "pipeline"]


def test_each_windowing_function_of_the_sql_page_gives_the_window_beside_it():
    page = (DOCS / "sql.md").read_text()
    rows = re.findall(
        r"^\| `((?:tumble|hop|cumulate|session|counted|previous)\(.*?\))` \| `(.*?)` \|$", page, re.MULTILINE
    )
    assert {call.partition("(")[0] for call, _ in rows} == set(window_functions())
    for call, window in rows:
        for whole, part in (("", ""), (r"\1", r"\1")):  # without and with the text in brackets
            query = re.sub(r" \[(.*?)\]", whole, call)
            wanted = re.sub(r" \[(.*?)\]", part, window)
            keys = "".join(f"{key}, " for key in re.findall(r"partition by (\w+)", query))
            select = f"select {keys}count(*) as n from table({query}) as w group by {keys}window_start, window_end"
            text = f"create job j with (delay = '1s') as {select}"
            data = translate(text, "x").documents[0].data
            kind, fields = next(
                (name, value) for name, value in data["steps"][0]["window"].items() if name not in ("name", "by")
            )
            shown = fields if isinstance(fields, str) else "{" + ", ".join(f"{k}: {v}" for k, v in fields.items()) + "}"
            assert f"{kind}: {shown}" == wanted


def test_the_programs_with_a_client_run_against_the_api_without_servers(tmp_path, capsys):
    """The effect on a real platform is tested in tests/integration/test_client.py."""
    gateway = FastAPI()

    @gateway.post("/v1/streams/turbines/records")
    async def take(request: Request) -> dict[str, int]:
        lines = request.headers["content-type"] == "application/x-ndjson"
        return {"accepted": len((await request.body()).splitlines()) if lines else 1}

    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    api = Api(ledger, ObedientSupervisor(ledger))
    headers = {
        "stream": "turbines",
        "partition": "0",
        "offset": "90",
        "reason": "decode",
        "step": "decode",
        "message": "m",
    }
    api.log.letters = [StoredDeadLetter(0, 1_000, headers, b"not JSON")]
    said = []
    with closing(ledger), serving(api.app) as url, serving(gateway) as ingest_url:
        names: dict[str, Any] = {"url": url, "ingest_url": ingest_url, "token": None}
        for program in blocks_of("python.md", "python"):
            without_kafka = "".join(line for line in program.splitlines(True) if "requeue_dead_letters" not in line)
            exec(compile(without_kafka, "python.md", "exec"), names)
            said.append(capsys.readouterr().out)
    *_, applied, sent, ended = said
    assert applied == "stream turbines created\npipeline turbine-health created\n"
    assert sent == "91 []\n"
    state, letters, sentence = ended.splitlines()
    assert state.startswith("drained ") and letters == "[('decode', 90)]" and sentence
