"""The server part of the console: its files and their headers, sign-in, and the routes that were added for it."""

from __future__ import annotations

import asyncio
import gzip
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from strandline.access.authenticator import Authenticator
from strandline.access.sessions import SESSION_LASTS_S, SESSIONS_MAX, Sessions
from strandline.access.tokens import revoke_token
from strandline.core.errors import NotFound
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import JobState
from strandline.services.console.page import content_security_policy, page_files
from strandline.services.jobs import job_status
from strandline.services.jobs.histories import STEP_MS, STEPS, Histories
from strandline.services.rest import kept_answers
from tests.support.control import BOTH, Api
from tests.support.ledgers import a_checkpoint, a_slice
from tests.support.tokens import tokens_of_each_kind

OWN = {"Origin": "http://localhost:8080", "Sec-Fetch-Site": "same-origin"}
FIRST_PAGE_BYTES_MAX = 150_000
EDITOR_BYTES_MAX = 154_000


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield opened
    opened.close()


@pytest.fixture
def api(ledger: Ledger) -> Api:
    return Api(ledger)


@pytest.fixture
def authenticator(ledger: Ledger) -> Iterator[Authenticator]:
    made = Authenticator(ledger, look_s=1, kept_s=10)
    yield made
    made.close()


@pytest.fixture
def guarded(ledger: Ledger, authenticator: Authenticator) -> Api:
    return Api(ledger, authenticator=authenticator)


@pytest.fixture
def tokens(ledger: Ledger) -> dict[str, str]:
    return tokens_of_each_kind(ledger, "turbines")


def sign_in(api: Api, token: str, **headers: str) -> httpx.Response:
    return api.ask("POST", "/v1/session", json={"token": token}, headers=OWN | headers)


def cookie_of(answer: httpx.Response) -> dict[str, str]:
    """The header that a browser sends after this answer."""
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


# Files


@pytest.mark.guarantee(
    "G860",
    "The console runs only code of its own files: the content security policy allows no inline code, no `eval`, and "
    "no other host. Its files contain no data.",
    promise="secrets-and-connections-are-protected",
)
def test_the_page_allows_only_files_of_its_own_service(api: Api) -> None:
    answer = api.ask("GET", "/")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = answer.headers["content-security-policy"]
    assert policy == content_security_policy()
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy and "*" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", answer.text), "code or styles in the page"


def test_the_page_is_checked_at_each_visit_and_its_files_are_kept(api: Api) -> None:
    page = api.ask("GET", "/")
    assert page.headers["cache-control"] == "no-cache"
    again = api.ask("GET", "/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    named = re.findall(r'(?:src|href)="(/console/[^"]+)"', page.text)
    assert len(named) == 3
    for path in named:
        file = api.ask("GET", path)
        assert (file.status_code, file.headers["x-content-type-options"]) == (200, "nosniff"), path
        assert file.headers["cache-control"] == "public, max-age=31536000, immutable", path
    old = api.ask("GET", "/console/app.js?v=0123456789abcdef")
    assert (old.status_code, old.headers["cache-control"]) == (200, "no-cache"), "another version must not be kept"


def test_a_file_is_compressed_for_browsers_that_accept_it(api: Api) -> None:
    plain = api.ask("GET", "/console/app.js", headers={"Accept-Encoding": "identity"})
    packed = api.ask("GET", "/console/app.js", headers={"Accept-Encoding": "gzip, br"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content == page_files()["app.js"].body
    assert plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding"


@pytest.mark.guarantee("G860")
def test_the_first_page_is_small_and_names_no_other_host() -> None:
    sizes = {name: len(file.compressed) for name, file in page_files().items() if name != "LICENSES.txt"}
    editor_bytes = sizes.pop("editor.js")
    assert sum(sizes.values()) <= FIRST_PAGE_BYTES_MAX
    assert editor_bytes <= EDITOR_BYTES_MAX
    assert b"editor.js" not in page_files()["index.html"].body, "the first page must not load the editor"
    for name, file in page_files().items():
        assert gzip.decompress(file.compressed) == file.body
        if name != "LICENSES.txt":
            hosts = set(re.findall(rb"https?://([\w.-]+)", file.body)) - {b"www.w3.org"}
            assert not hosts, f"{name} names {hosts}"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_the_page_is_only_read(api: Api, method: str) -> None:
    for path in ("/", "/console/app.js"):
        answer = api.ask(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET"), path


@pytest.mark.parametrize("name", ["nothing.js", "index.html", "..%2fpage.py", "%00"])
def test_only_files_of_the_page_are_served(api: Api, name: str) -> None:
    assert api.ask("GET", f"/console/{name}").status_code == 404


def test_the_page_needs_no_token_and_contains_no_data(guarded: Api) -> None:
    assert guarded.ask("GET", "/").status_code == 200
    assert guarded.ask("GET", "/console/app.js").status_code == 200
    assert guarded.ask("GET", "/v1/jobs").status_code == 401


def test_answers_of_the_api_are_not_kept_by_browsers(api: Api) -> None:
    answer = api.ask("GET", "/v1/jobs")
    assert (answer.headers["cache-control"], answer.headers["x-content-type-options"]) == ("no-store", "nosniff")


# Sign-in


@pytest.mark.guarantee(
    "G861",
    "The console stores no token in the browser. A session ends at sign-out, after 12 hours, and when its token is "
    "revoked or expires.",
    promise="secrets-and-connections-are-protected",
)
def test_a_token_signs_in_and_the_cookie_does_not_contain_it(guarded: Api, tokens: dict[str, str]) -> None:
    answer = sign_in(guarded, tokens["viewer"])
    assert (answer.status_code, answer.json()["name"], answer.json()["role"]) == (201, "viewer", "viewer")
    header = answer.headers["set-cookie"]
    name, *attributes = header.split("; ")
    assert name.startswith("strandline-8080=") and set(attributes) == {"Path=/", "HttpOnly", "SameSite=Strict"}
    assert tokens["viewer"] not in header and tokens["viewer"] not in answer.text
    cookie = cookie_of(answer)
    assert guarded.ask("GET", "/v1/jobs", headers=cookie).status_code == 200
    assert guarded.ask("GET", "/v1/session", headers=cookie).json()["name"] == "viewer"
    refused = guarded.ask("POST", "/v1/jobs/x/stop", headers=cookie | OWN)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


def test_over_https_the_cookie_is_bound_to_the_host(guarded: Api, tokens: dict[str, str]) -> None:
    own = {"Origin": "https://localhost:8080"}
    answer = guarded.ask("POST", "https://localhost:8080/v1/session", json={"token": tokens["viewer"]}, headers=own)
    name, *attributes = answer.headers["set-cookie"].split("; ")
    assert name.startswith("__Host-strandline=")
    assert set(attributes) == {"Path=/", "HttpOnly", "SameSite=Strict", "Secure"}


def test_a_token_is_not_sent_over_plain_http_to_another_machine(
    ledger: Ledger, authenticator: Authenticator, tokens: dict[str, str]
) -> None:
    api = Api(ledger, authenticator=authenticator, names=("farm.example",))
    headers = {"Host": "farm.example", "Origin": "http://farm.example"}
    answer = api.ask("POST", "/v1/session", json={"token": tokens["viewer"]}, headers=headers)
    assert answer.status_code == 409 and "set-cookie" not in answer.headers
    assert "STRANDLINE_CONTROL_TLS_CERTIFICATE" in answer.json()["detail"]


def test_a_worthless_token_does_not_sign_in(guarded: Api, tokens: dict[str, str]) -> None:
    for kind in ("wrong secret", "expired", "revoked", "unknown", "no token"):
        answer = sign_in(guarded, tokens[kind])
        assert answer.status_code == 401 and "set-cookie" not in answer.headers, kind


@pytest.mark.guarantee("G861")
def test_a_revoked_token_ends_its_sessions(
    guarded: Api, ledger: Ledger, authenticator: Authenticator, tokens: dict[str, str]
) -> None:
    cookie = cookie_of(sign_in(guarded, tokens["operator"]))
    assert guarded.ask("GET", "/v1/jobs", headers=cookie).status_code == 200
    revoke_token(ledger, "operator", "the test")
    asyncio.run(authenticator.look())
    assert guarded.ask("GET", "/v1/jobs", headers=cookie).status_code == 401
    assert guarded.ask("GET", "/v1/session", headers=cookie).json()["name"] is None


@pytest.mark.guarantee("G861")
def test_signing_out_ends_the_session_and_removes_the_cookie(guarded: Api, tokens: dict[str, str]) -> None:
    cookie = cookie_of(sign_in(guarded, tokens["viewer"]))
    answer = guarded.ask("DELETE", "/v1/session", headers=cookie | OWN)
    assert answer.json()["name"] is None and "Max-Age=0" in answer.headers["set-cookie"]
    assert guarded.ask("GET", "/v1/jobs", headers=cookie).status_code == 401, "a copy of the cookie is worth nothing"


def test_a_new_sign_in_ends_the_session_before(guarded: Api, tokens: dict[str, str]) -> None:
    before = cookie_of(sign_in(guarded, tokens["viewer"]))
    sign_in(guarded, tokens["operator"], **before)
    assert guarded.ask("GET", "/v1/jobs", headers=before).status_code == 401


FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:9999"},
    {"Origin": "http://localhost:9999"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
]


@pytest.mark.guarantee(
    "G862",
    "A page of another site, or of another port of the host, can't use the session of the console.",
    promise="each-operation-requires-its-right",
)
def test_a_page_of_another_site_can_not_use_the_cookie(guarded: Api, tokens: dict[str, str]) -> None:
    cookie = cookie_of(sign_in(guarded, tokens["operator"]))
    for method, path in (("GET", "/v1/jobs"), ("POST", "/v1/jobs/x/stop"), ("DELETE", "/v1/session")):
        for headers in FOREIGN:
            answer = guarded.ask(method, path, headers=cookie | headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), (method, headers)
    assert guarded.ask("GET", "/v1/jobs", headers=cookie).status_code == 200, "the session continues"


@pytest.mark.guarantee("G862")
def test_a_change_by_cookie_needs_the_origin_of_the_page(guarded: Api, tokens: dict[str, str]) -> None:
    cookie = cookie_of(sign_in(guarded, tokens["operator"]))
    assert guarded.ask("POST", "/v1/jobs/x/stop", headers=cookie).status_code == 403
    assert guarded.ask("POST", "/v1/jobs/x/stop", headers=cookie | OWN).status_code == 404, "the job doesn't exist"
    bearer = {"Authorization": f"Bearer {tokens['operator']}"}
    assert guarded.ask("POST", "/v1/jobs/x/stop", headers=bearer).status_code == 404, "programs need no origin"


@pytest.mark.parametrize(
    "cookie", ["strandline-8080=", "strandline-8080=guess", "strandline-8080=\x01; a", "x" * 4_000]
)
def test_a_cookie_that_is_no_session_is_worth_nothing(guarded: Api, cookie: str) -> None:
    assert guarded.ask("GET", "/v1/jobs", headers={"Cookie": cookie}).status_code == 401


def test_the_session_reports_the_right_that_each_operation_needs(guarded: Api, tokens: dict[str, str]) -> None:
    nobody = guarded.ask("GET", "/v1/session").json()
    assert (nobody["requires_token"], nobody["name"], nobody["role"]) == (True, None, None)
    assert not nobody["operations"]["GET /v1/jobs"]["allowed"]
    bearer = {"Authorization": f"Bearer {tokens['operator']}"}
    rights = guarded.ask("GET", "/v1/session", headers=bearer).json()["operations"]
    assert rights["POST /v1/jobs/{name}/stop"] == {"needs": "operator", "allowed": True}
    assert rights["POST /v1/tokens"] == {"needs": "admin", "allowed": False}


def test_without_authentication_nobody_signs_in(api: Api) -> None:
    session = api.ask("GET", "/v1/session").json()
    assert (session["requires_token"], session["name"], session["role"]) == (False, None, "admin")
    assert sign_in(api, "sl_anything").status_code == 409


@pytest.mark.guarantee("G861")
def test_a_session_ends_and_their_number_is_bounded() -> None:
    clock = [0.0]
    sessions = Sessions(lambda: clock[0])
    first = sessions.open(b"Bearer one")
    assert sessions.authorization(first) == b"Bearer one"
    others = [sessions.open(b"Bearer more") for _ in range(SESSIONS_MAX)]
    assert sessions.authorization(first) is None, "the oldest one gives way"
    clock[0] = SESSION_LASTS_S
    assert all(sessions.authorization(one) is None for one in others)


# Routes for the console


def commit(ledger: Ledger, number: int, at_ms: int, **changed: Any) -> None:
    ledger.plan_slice(a_slice(number))
    ledger.commit_checkpoint(a_checkpoint(number, committed_ms=at_ms, **changed))


@pytest.fixture
def running(api: Api) -> Api:
    api.apply(BOTH)
    api.ledger.move_job("power", JobState.STARTING)
    api.ledger.begin_run("power", 1)
    api.ledger.move_job("power", JobState.RUNNING)
    return api


def test_checkpoints_are_paged_from_the_newest(running: Api) -> None:
    for number in range(1, 6):
        commit(running.ledger, number, 1_200 * number)
    page = running.ask("GET", "/v1/jobs/power/checkpoints?limit=2").json()
    assert [one["slice"] for one in page["checkpoints"]] == [5, 4]
    assert page["checkpoints"][0]["rejected"] == {"late": 1, "decode": 1}
    rest = running.ask("GET", page["next"]).json()
    assert [one["slice"] for one in rest["checkpoints"]] == [3, 2]
    assert running.ask("GET", "/v1/jobs/nothing/checkpoints").status_code == 404


def test_the_newest_runs_are_listed(running: Api) -> None:
    running.ledger.begin_run("power", 2)
    runs = running.ask("GET", "/v1/jobs/power/runs").json()["runs"]
    assert [(one["epoch"], one["outcome"]) for one in runs] == [(1, "superseded"), (2, None)]
    assert [one["epoch"] for one in running.ask("GET", "/v1/jobs/power/runs?limit=1").json()["runs"]] == [2]


def test_the_history_sums_slices_by_step_and_reads_each_once(running: Api) -> None:
    now_ms = 200 * STEP_MS + 5
    histories = Histories(running.ledger, lambda: now_ms)
    commit(running.ledger, 1, now_ms - STEPS * STEP_MS, latest_log_ms=1)  # before the first step
    commit(running.ledger, 2, now_ms - STEP_MS, latest_log_ms=now_ms - STEP_MS - 700)
    found = histories.of(running.ledger.job("power"))
    assert (found.from_ms, len(found.records)) == ((200 - STEPS + 1) * STEP_MS, STEPS)
    assert (sum(found.records), found.records[-2], found.rejected[-2], found.results[-2]) == (30, 30, 2, 5)
    assert (found.behind_ms[-2], found.behind_ms[-1]) == (700, None)
    commit(running.ledger, 3, now_ms, rejected={"duplicate": 4, "late": 1}, latest_log_ms=now_ms - 10)
    again = histories.of(running.ledger.job("power"))
    assert (again.records[-2], again.records[-1], again.rejected[-1]) == (30, 30, 1)


def test_the_history_of_a_job_that_was_created_again_begins_again(running: Api) -> None:
    now_ms = running.ledger.job("power").created_ms
    histories = Histories(running.ledger, lambda: now_ms)
    commit(running.ledger, 1, now_ms)
    assert sum(histories.of(running.ledger.job("power")).records) == 30
    running.ledger.move_job("power", JobState.STOPPING)
    running.ledger.move_job("power", JobState.STOPPED)
    assert running.ask("DELETE", "/v1/jobs/power").status_code == 200
    running.ledger._clock_ms = lambda: now_ms + 1
    running.apply(BOTH)
    assert sum(histories.of(running.ledger.job("power")).records) == 0


def test_all_jobs_are_explained_in_one_answer(running: Api) -> None:
    (found,) = running.ask("GET", "/v1/explanations").json()["explanations"]
    alone = running.ask("GET", "/v1/jobs/power/explanation").json()
    assert found == {"job": "power", "rejected_share": 0.0, **alone}


@pytest.mark.parametrize("resource", ["jobs", "explanations", "histories"])
def test_jobs_are_chosen_by_name(running: Api, resource: str) -> None:
    running.apply(BOTH.replace("pipeline: power", "pipeline: second").replace("turbine-minute", "second-minute"))

    def names(query: str) -> list[str]:
        answer = running.ask("GET", f"/v1/{resource}{query}")
        assert answer.status_code == 200, answer.text
        return [one.get("name") or one["job"] for one in answer.json()[resource]]

    assert names("") == ["power", "second"]
    assert names("?name=second") == ["second"]
    assert names("?name=second&name=none&name=power") == ["power", "second"]
    assert names("?name=none") == []
    assert running.ask("GET", f"/v1/{resource}?" + "&".join(["name=power"] * 101)).status_code == 422
    assert running.ask("GET", f"/v1/{resource}?name=a%00b&name=power").status_code == 404


@pytest.mark.parametrize("resource", ["jobs", "explanations", "histories", "arrivals"])
def test_an_answer_that_the_client_has_is_not_sent_again(
    running: Api, monkeypatch: pytest.MonkeyPatch, resource: str
) -> None:
    # A response is kept for a multiple of its own time, so a small one might not be kept until the second request.
    monkeypatch.setattr(kept_answers, "SHARE", 1_000_000.0)
    first = running.ask("GET", f"/v1/{resource}?max_age_s=60")
    again = running.ask("GET", f"/v1/{resource}?max_age_s=60", headers={"If-None-Match": first.headers["ETag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    assert again.headers["Cache-Control"] == "no-store"


def test_a_history_of_many_jobs_is_that_of_each(running: Api) -> None:
    commit(running.ledger, 1, running.ledger.job("power").created_ms)
    (found,) = running.ask("GET", "/v1/histories").json()["histories"]
    assert found == {"job": "power", **running.ask("GET", "/v1/jobs/power/history").json()}
    assert sum(found["records"]) == 30


def test_the_share_of_rejected_records_is_that_of_the_last_hour(running: Api) -> None:
    now_ms = int(time.time() * 1000)
    commit(running.ledger, 1, now_ms - 2 * 3_600_000, rejected={"late": 29})
    commit(running.ledger, 2, now_ms - 60_000, rejected={"decode": 3, "duplicate": 5})
    commit(running.ledger, 3, now_ms - 30_000, rejected={})
    (found,) = running.ask("GET", "/v1/explanations").json()["explanations"]
    assert found["rejected_share"] == pytest.approx(3 / 60)


def test_the_newest_result_is_searched_once(running: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms, searched = int(time.time() * 1000), []
    search = type(running.ledger).last_result
    monkeypatch.setattr(
        type(running.ledger), "last_result", lambda self, job: (searched.append(job), search(self, job))[1]
    )

    def explained() -> Any:
        return running.ask("GET", "/v1/explanations").json()["explanations"][0]["cause"], len(searched)

    commit(running.ledger, 1, now_ms - 600_000)
    commit(running.ledger, 2, now_ms - 500_000, results={"per_minute": 0})
    assert [explained()[1], explained()[1]] == [1, 1]
    commit(running.ledger, 3, now_ms, results={"per_minute": 0})
    assert explained()[1] == 1
    commit(running.ledger, 4, now_ms)
    assert explained() == ("results", 1), "the last checkpoint has a result, so nothing is searched"
    commit(running.ledger, 5, now_ms, results={"per_minute": 0})
    assert explained() == ("results", 1)


def test_a_job_whose_stream_is_missing_is_explained_by_that(running: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise NotFound("there is no stream turbines")

    monkeypatch.setattr(job_status._Documents, "pipeline", missing)
    (found,) = running.ask("GET", "/v1/explanations").json()["explanations"]
    assert (found["job"], found["cause"], found["message"]) == ("power", "missing", "there is no stream turbines")


def test_arrivals_show_the_newest_record_and_why_there_is_none(running: Api) -> None:
    (found,) = running.ask("GET", "/v1/arrivals").json()["arrivals"]
    assert (found["stream"], found["newest_ms"], found["records"], found["problem"]) == (
        "turbines",
        1_700_000_000_000,
        300,
        "",
    )
    assert [one["offset_next"] for one in found["partitions"]] == [100, 205]
    running.log.newest_ms = 0
    assert running.ask("GET", "/v1/arrivals").json()["arrivals"][0]["newest_ms"] is None
    running.log.ranges = {}
    (away,) = running.ask("GET", "/v1/arrivals").json()["arrivals"]
    assert (away["newest_ms"], away["records"], away["problem"]) == (None, None, "Kafka does not answer")


def test_aliases_are_listed_with_what_can_be_drawn(running: Api) -> None:
    (found,) = running.ask("GET", "/v1/results").json()["results"]
    assert (found["alias"], found["job"], found["stage"], found["keys"]) == (
        "turbine-minute",
        "power",
        "per_minute",
        ["turbine"],
    )
    assert [(one["name"], one["operation"]) for one in found["numbers"]] == [("n", "sum"), ("peak", "max")]
