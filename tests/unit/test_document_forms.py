"""Documents in SQL in requests to the control service: checked, planned, previewed, applied, and converted."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from strandline.core.errors import Conflict, InvalidDocument
from strandline.frontends.sql.translation import translate
from strandline.ledger.ledger import Ledger
from strandline.services.jobs.document_forms import DocumentForm, SentDocuments, converted
from tests.support.control import BOTH, Api

STREAM = "create stream tanks (tank string, ts timestamp, level double) with (key = 'tank');\n"
JOB = """\
create job levels with (delay = '10s') as
insert into elasticsearch 'levels'
select tank, window_start, window_end, avg(level) as level
from table(tumble(table tanks, descriptor(ts), interval '1' minute))
group by tank, window_start, window_end;
"""
TANKS = STREAM + JOB
SQL = {"Content-Type": "application/sql"}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield Api(ledger)
    ledger.close()


def post(api: Api, path: str, text: str, headers: dict[str, str] = SQL) -> Any:
    return api.ask("POST", path, content=text, headers=headers)


def test_a_job_in_sql_is_checked_planned_and_stored_as_yaml(api: Api) -> None:
    assert post(api, "/v1/pipelines/check", TANKS).json()["valid"] is True
    plan = post(api, "/v1/documents/plan", TANKS).json()
    assert [(one["job"], one["outcome"]) for one in plan["jobs"]] == [("levels", "created")]
    assert post(api, "/v1/documents", TANKS).status_code == 200
    stored = api.ledger.job_version("levels").text
    assert list(yaml.safe_load_all(stored)) == [one.data for one in translate(TANKS, "").documents]
    again = post(api, "/v1/documents/plan", TANKS).json()
    assert [one["outcome"] for one in again["jobs"]] == ["unchanged"]


@pytest.mark.parametrize(
    ("text", "line", "column", "detail"),
    [
        (STREAM + JOB.replace("avg(level)", "avg(levle)"), 4, 40, "unknown column 'levle'"),
        (STREAM + JOB.replace("group by", "grup by"), 6, 6, "expected"),
        (JOB, 4, 25, "no stream 'tanks'"),
    ],
)
def test_a_problem_has_its_line_and_column_in_the_sql_text(
    api: Api, text: str, line: int, column: int, detail: str
) -> None:
    problem = post(api, "/v1/pipelines/check", text).json()["problems"][0]
    assert detail in problem["detail"]
    assert (problem["line"], problem["column"]) == (line, column)
    for path in ("/v1/documents", "/v1/documents/plan", "/v1/pipelines/preview", "/v1/topics/turbines/preview"):
        refused = post(api, path, text)
        assert (refused.status_code, refused.json()["errors"][0]) == (422, problem)
    assert api.ledger.jobs() == []


def test_a_job_in_sql_is_previewed_over_a_stream_and_over_a_sample(api: Api) -> None:
    api.log.ranges["tanks"] = api.log.ranges["turbines"]
    assert post(api, "/v1/pipelines/preview?stream=turbines", TANKS).json()["records"] == 2
    sample = b64encode(b'{"tank": "a", "ts": 1764000000000, "level": 2.5}\n').decode()
    seen = api.ask("POST", "/v1/samples/preview", json={"documents": TANKS, "form": "sql", "sample": sample}).json()
    assert [one["level"] for one in seen["results"]] == [2.5]


def test_documents_are_converted_and_mean_the_same(api: Api) -> None:
    answer = post(api, "/v1/documents/conversion?as=yaml", TANKS).json()
    assert answer["form"] == "yaml"
    assert list(yaml.safe_load_all(answer["text"])) == [one.data for one in translate(TANKS, "").documents]
    sql = post(api, "/v1/documents/conversion?as=sql", BOTH, {"Content-Type": "application/yaml"}).json()["text"]
    assert sql.startswith("create stream turbines")
    assert [one.data for one in translate(sql, "").documents] == list(yaml.safe_load_all(BOTH))
    assert post(api, "/v1/documents/conversion?as=python", TANKS).status_code == 422


def test_a_document_without_a_form_in_sql_is_refused_with_the_reason() -> None:
    notice = b"notice: n\nwhen: [job_failed]\nsend: [{webhook: {url: http://localhost/}}]\n"
    with pytest.raises(Conflict, match="SQL has no form for notice 'n'"):
        converted(SentDocuments(notice), DocumentForm.SQL, "<request>")


def test_documents_that_are_wrong_are_not_converted() -> None:
    with pytest.raises(InvalidDocument) as raised:
        converted(SentDocuments(b"stream: s\nschem: {a: string}\n"), DocumentForm.SQL, "<request>")
    assert raised.value.problems[0].line is not None
    bad = (STREAM.replace("key = 'tank'", "retention = 'soon'") + JOB).encode()
    with pytest.raises(InvalidDocument) as raised:
        converted(SentDocuments(bad, DocumentForm.SQL), DocumentForm.YAML, "<request>")
    assert raised.value.problems[0].column == STREAM.index("key = ") + 1


def test_other_media_types_are_refused(api: Api) -> None:
    answer = post(api, "/v1/documents", TANKS, {"Content-Type": "application/json"})
    assert answer.status_code == 415
    assert "application/sql" in answer.json()["detail"]
