"""Documents of notices: what they mean, what is refused, and what the API and the command line do with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from strandline.core.documents import read_documents
from strandline.core.errors import InvalidDocument, PermanentError
from strandline.frontends.python.printer import as_python
from strandline.frontends.sql.printer import as_sql
from strandline.ledger.ledger import Ledger
from strandline.notices.channels.table import CHANNELS
from strandline.notices.conditions.table import CONDITIONS
from strandline.notices.document import NoticeSpec, QuietSpec
from tests.support.control import BOTH, Api

DOCS = Path(__file__).parents[2] / "docs"
NOTICE = """\
notice: night
when: [job_failed, {lag: {above: 5, for: 1m}}, {lag: {above: 500}}]
to:
  - mail: {to: [ops@example.org], from: s@example.org, server: smtp.example.org}
  - webhook: {url: "https://hooks.example/a"}
"""


def parse(text: str) -> NoticeSpec:
    (document,) = read_documents(text, "night.yaml", ("notice",))
    return NoticeSpec.parse(document)


def test_a_document_is_read_back_as_it_was_stored() -> None:
    spec = parse(NOTICE)
    assert NoticeSpec.from_document(spec.as_document()) == spec
    assert spec.labels == ["job_failed", "lag", "lag 2"] and list(spec.channels) == ["mail", "webhook"]
    assert (spec.rules.group_by, spec.rules.wait_ms, spec.limit) == ("condition", 10_000, 10)


def test_each_condition_is_stored_with_its_options() -> None:
    urls = {"urls": ["http://127.0.0.1:8081/readyz"]}
    results = {"of": "turbine-health.hourly", "where": "peak > 100"}
    needed = {"gateway_away": urls, "spool_fills": urls, "results": results}
    base = parse(NOTICE).as_document()
    for keyword in CONDITIONS:
        spec = NoticeSpec.from_document(base | {"when": [{keyword: needed.get(keyword, {})}]})
        assert NoticeSpec.from_document(spec.as_document()) == spec, keyword


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("when: [job_faled]", "when[0]: there is no condition 'job_faled'; did you mean 'job_failed'?"),
        ("when: [{lag: {over: 3}}]", "unknown field 'over'"),
        ("when: [{lag: {}, expiry: {}}]", "a condition must be exactly one of"),
        ("when: [{disk_full: {above: 0.9}}]", "0.9 is not a share; write 90%"),
        ("to: [{webhook: {url: 'http://hooks.example', headers: {X: {secret: A}}}}]", "use https"),
        ("to: [{webhook: {url: 'https://u:p@hooks.example'}}]", "contains a user or a password"),
        ("to: [{webhook: {url: 'https://h.example', headers: {Authorization: abc}}}]", "write {secret: NAME}"),
        ("to: [{webhook: {url: 'https://h.example', template: {a: ['{titel}']}}}]", "there is no placeholder {titel}"),
        ("to: [{mail: {to: [ops], from: s@e.org, server: e.org}}]", "'ops' is not a mail address"),
        (
            "to: [{mail: {to: [a@e.org], from: s@e.org, server: e.org, security: none}}]",
            "only for a mail server on this",
        ),
        ("to: [{mail: {to: [a@e.org], from: s@e.org, server: e.org, user: u}}]", "a login needs both"),
        ("quiet: [{from: '25:00', to: '06:00'}]", "'25:00' is not a time of day"),
        ("quiet: [{from: '22:00', to: '06:00', zone: Mars}]", "'Mars' is not a time zone"),
        ("mute: 2h", "strandline notice mute NAME"),
    ],
)
def test_a_wrong_document_is_refused_with_what_to_do(part: str, said: str) -> None:
    field = part.partition(":")[0]
    text = "\n".join(line for line in NOTICE.splitlines() if not line.startswith(f"{field}:"))
    if field == "to":
        text = text.partition("  - mail")[0]
    with pytest.raises(InvalidDocument, match=re.escape(said)):
        parse(f"{text}\n{part}\n")


@pytest.mark.parametrize(
    ("hour", "day", "is_quiet"),
    [(22, 27, True), (23, 27, True), (3, 28, True), (6, 28, False), (21, 27, False), (23, 28, False), (3, 29, False)],
)
def test_quiet_hours_begin_on_their_days_and_go_past_midnight(hour: int, day: int, is_quiet: bool) -> None:
    """27 November 2026 is a Friday. Berlin is an hour ahead of UTC then."""
    quiet = QuietSpec.model_validate({"from": "22:00", "to": "06:00", "zone": "Europe/Berlin", "days": ["fri"]})
    local = datetime(2026, 11, day, hour, 30, tzinfo=UTC).timestamp() - 3_600
    assert quiet.holds(int(local * 1_000)) is is_quiet


def test_each_document_of_the_page_is_valid_and_each_condition_and_channel_is_on_it() -> None:
    page = (DOCS / "notices.md").read_text()
    blocks = [dedent(block) for _, block in re.findall(r"^( *)```yaml\n(.*?)^\1```", page, re.DOTALL | re.MULTILINE)]
    found = [
        NoticeSpec.parse(one)
        for block in blocks
        if block.startswith("notice:")
        for one in read_documents(block, "notices.md", ("notice",))
    ]
    assert [one.notice for one in found] == ["night", "chat", "pager"]
    assert {keyword for keyword in CONDITIONS if f"| `{keyword}` |" not in page} == set()
    assert {keyword for keyword in CHANNELS if f"### {keyword}\n" not in page} == set()


def test_other_forms_refuse_a_notice() -> None:
    document = parse(NOTICE).as_document()
    for write in (as_sql, as_python):
        with pytest.raises(PermanentError, match="has no form for notice 'night'"):
            write([document])


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield Api(ledger)
    ledger.close()


def test_a_notice_is_applied_checked_shown_muted_and_deleted(api: Api) -> None:
    assert api.outcomes(f"{BOTH}---\n{NOTICE}") == ["created", "created", "created"]
    assert api.outcomes(NOTICE) == ["unchanged"]
    assert api.outcomes(NOTICE.replace("above: 500", "above: 501")) == ["changed"]
    shown: dict[str, Any] = api.ask("GET", "/v1/notices/night").json()
    assert (shown["version"], shown["open_problems"], shown["unsent_messages"], shown["failing"]) == (2, 0, 0, "")
    assert api.ask("GET", "/v1/notices").json()["notices"][0]["conditions"] == ["job_failed", "lag", "lag 2"]
    assert api.ask("POST", "/v1/notices/night/test").json()["messages"] == [1, 2]
    muted = api.ask("POST", "/v1/notices/night/mute", params={"until_ms": 2**50}).json()
    assert muted["muted_until_ms"] == 2**50 and muted["unsent_messages"] == 2
    assert api.ask("POST", "/v1/notices/night/mute").json()["muted_until_ms"] is None
    metrics = api.ask("GET", "/metrics").text
    assert 'strandline_notice_unsent_messages{notice="night"} 2.0' in metrics
    assert api.ask("DELETE", "/v1/notices/night").json() == {"notice": "night"}
    assert api.ask("GET", "/v1/notices/night").status_code == 404
    kinds = [event.kind for event in api.ledger.events() if event.kind.startswith("notice")]
    assert kinds == ["notice_created", "notice_changed", "notice_muted", "notice_unmuted", "notice_deleted"]


def test_a_wrong_notice_keeps_the_other_documents_from_being_applied(api: Api) -> None:
    answer = api.apply(f"{BOTH}---\n{NOTICE.replace('job_failed', 'job_fails')}")
    assert answer.status_code == 422 and "did you mean 'job_failed'" in answer.text
    assert api.ledger.jobs() == []
    check = api.ask("POST", "/v1/pipelines/check", content=NOTICE, headers={"Content-Type": "application/yaml"})
    assert check.json()["valid"] is True
