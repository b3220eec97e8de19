"""A URL may hold a user and a password: no error, answer or log line shows them."""

from __future__ import annotations

import base64
import json
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from strandline.access.authenticator import Authenticator
from strandline.access.tokens import make_token
from strandline.core.errors import StrandlineError
from strandline.core.settings import Settings
from strandline.core.urls import without_credentials
from strandline.ledger.database import Database
from strandline.ledger.ledger import Ledger
from strandline.ledger.states import Role
from strandline.processing.audit.index_reader import EndRange, open_snapshot, read_documents
from strandline.results.elasticsearch_client import request
from strandline.results.generations import Generation, discard_generation, swap_aliases
from strandline.results.mapping import ensure_index_template
from strandline.services import control
from strandline.services.jobs.apply_documents import ensure_templates
from tests.support.control import BOTH, Api
from tests.support.settings_classes import all_settings
from tests.support.tokens import secret_of

USER, PASSWORD = "canary-user", "canary-password"
LOGIN = f"{USER}:{PASSWORD}"
SECRETS = (USER, PASSWORD, base64.b64encode(LOGIN.encode()).decode())
NOBODY = f"http://{LOGIN}@127.0.0.1:1"


def require_clean(text: str) -> None:
    found = [secret for secret in SECRETS if secret in text]
    assert not found, f"{found} in: {text}"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:9200", "http://127.0.0.1:9200"),
        (f"https://{LOGIN}@index:9200/path", "https://index:9200/path"),
        (f"http://{USER}@index:9200", "http://index:9200"),
        (f"http://{USER}:a@b/{PASSWORD}@index:9200", "http://index:9200"),
        (f"{LOGIN}@index:9200", "index:9200"),
    ],
)
def test_a_url_is_shown_without_user_and_password(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


ANSWERS: dict[str, tuple[int, bytes, bool]] = {
    "refused": (401, b'{"error": {"type": "security_exception", "reason": "no"}}', True),
    "failing": (500, b"no", True),
    "unreadable": (200, b"{", True),
    "partial": (200, b'{"id": "1", "timed_out": true}', True),
    "something else": (200, b"{}", False),
}


@contextmanager
def an_index(answer: tuple[int, bytes, bool]) -> Iterator[str]:
    """A server that gives every request the same answer: (status, body, whether it says that it is Elasticsearch)."""
    status, body, is_elasticsearch = answer

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            assert self.headers["authorization"] == f"Basic {SECRETS[2]}"
            self.send_response(status)
            if is_elasticsearch:
                self.send_header("x-elastic-product", "Elasticsearch")
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://{LOGIN}@127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


REQUESTS: dict[str, Callable[[str], object]] = {
    "request": lambda url: request(url, "GET", "/", timeout_s=5.0),
    "template": lambda url: ensure_index_template(url, "minute", {"properties": {}}),
    "swap": lambda url: swap_aliases(url, {"minute": [Generation(2, 0, 1)]}),
    "discard": lambda url: discard_generation(url, "minute", 2),
    "snapshot": lambda url: open_snapshot(url, "minute"),
    "documents": lambda url: list(read_documents(url, "1", EndRange(), 0, 1)),
}


def require_clean_failure(ask: Callable[[], object]) -> None:
    """Not in the error's text, nor in the traceback that a log may hold."""
    with pytest.raises(StrandlineError) as failed:
        ask()
    require_clean(str(failed.value) + repr(vars(failed.value)))
    shown = traceback.TracebackException.from_exception(failed.value)
    while shown is not None:
        require_clean(str(shown))
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)


@pytest.mark.parametrize("ask", REQUESTS.values(), ids=REQUESTS.keys())
def test_an_index_that_does_not_answer(ask: Callable[[str], object]) -> None:
    require_clean_failure(lambda: ask(NOBODY))


@pytest.mark.parametrize("answer", [name for name in ANSWERS if name != "partial"])
def test_an_index_that_answers_no(answer: str) -> None:
    with an_index(ANSWERS[answer]) as url:
        for ask in REQUESTS.values():
            require_clean_failure(lambda ask=ask: ask(url))  # type: ignore[misc]


def test_an_index_that_answers_for_a_part_of_its_shards() -> None:
    with an_index(ANSWERS["partial"]) as url:
        require_clean_failure(lambda: REQUESTS["documents"](url))


@pytest.mark.parametrize(
    "url",
    [
        f"http://{LOGIN}/@index:9200",
        f"http://{USER}:{PASSWORD}#@index:9200",
        f"http://{LOGIN}@index:99999",
        f"http://{LOGIN}@[::1",
        f"http://{LOGIN}@index",
        f"{LOGIN}@index:9200",
    ],
)
def test_an_index_url_that_can_not_be_read(url: str) -> None:
    require_clean_failure(lambda: request(url, "GET", "/", timeout_s=1.0))


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+psycopg://{LOGIN}@127.0.0.1:1/ledger",
        f"postgresql+psycopg://{USER}@127.0.0.1:1/ledger?password={PASSWORD}",
        f"mysql://{LOGIN}@127.0.0.1:1/ledger",
        f"postgresql+psycopg://{LOGIN}@127.0.0.1:port/ledger",
        f"{LOGIN}@127.0.0.1:1/ledger",
    ],
)
def test_a_ledger_that_does_not_answer_or_can_not_be_named(url: str) -> None:
    with pytest.raises(StrandlineError) as failed:
        Ledger.open(url)
    assert PASSWORD not in str(failed.value)


def test_the_ledger_s_address_holds_no_password() -> None:
    url = f"postgresql+psycopg://{LOGIN}@db/ledger?password={PASSWORD}&sslpassword={PASSWORD}"
    assert PASSWORD not in Database(url).address


def test_the_api_s_answers(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    try:
        for url, status in ((NOBODY, 503), (f"http://{LOGIN}/@index:9200", 409)):
            api = Api(ledger, ensure_templates=lambda pipeline, url=url: ensure_templates(url, pipeline))  # type: ignore[misc]
            answer = api.apply(BOTH)
            assert answer.status_code == status
            assert "Elasticsearch" in answer.text or "ELASTICSEARCH_URL" in answer.text
            require_clean(answer.text + json.dumps(dict(answer.headers)))
            for path in ("/v1/streams", "/v1/jobs", "/v1/events", "/readyz", "/metrics"):
                require_clean(api.ask("GET", path).text)
    finally:
        ledger.close()


@pytest.mark.parametrize(("variable", "value"), [("CONTROL_PORT", "nowhere"), ("CONTROL_NAMES", "not a list")])
def test_a_control_service_with_wrong_settings(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STRANDLINE_ELASTICSEARCH_URL", NOBODY)
    monkeypatch.setenv("STRANDLINE_LEDGER_URL", f"postgresql+psycopg://{LOGIN}@127.0.0.1:1/ledger")
    monkeypatch.setenv(f"STRANDLINE_{variable}", value)
    with pytest.raises(SystemExit) as ended:
        control.main()
    said = capsys.readouterr()
    assert (ended.value.code, variable in said.err) == (1, True)
    require_clean(said.out + said.err)


@pytest.mark.parametrize("kind", sorted(all_settings(), key=lambda kind: kind.__name__))
def test_no_setting_that_is_wrong_is_shown(kind: type[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret may land in any variable by mistake: the error names the variable, and says nothing of what is in it."""
    of_all = set() if kind is Settings else Settings.model_fields.keys()
    for name in kind.model_fields.keys() - of_all:
        with monkeypatch.context() as planted:
            for value in (
                PASSWORD,
                f'["{PASSWORD}"]',
                f'{{"{USER}": "{PASSWORD}"}}',
                f"{PASSWORD}\n[",
                f'{{"{PASSWORD}": {{}}}}',
            ):
                planted.setenv(f"STRANDLINE_{name.upper()}", value)
                said = ""
                try:
                    kind.read()
                except StrandlineError as error:
                    said = str(error)
                assert not said or f"STRANDLINE_{name.upper()}" in said
                require_clean(said)


def test_no_token_is_shown_by_what_holds_or_refuses_it(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    try:
        made = make_token(ledger, "a", role=Role.ADMIN, writes=[], lasts_ms=None, now_ms=0, by="the test")
        secret = secret_of(made.text)
        door = Authenticator(ledger, look_s=1, kept_s=1)
        api = Api(ledger, authenticator=door)
        shown = [repr(made), str(ledger.events())]
        for token in (made.text, made.text[:-3]):
            for path in ("/v1/tokens", "/v1/events", "/metrics", "/v1/nothing", f"/v1/jobs/{secret[::-1]}"):
                answer = api.ask("GET", path, headers={"Authorization": f"Bearer {token}"})
                shown += [answer.text, str(answer.headers)]
        door.close()
        assert not [text for text in shown if secret[:40] in text]
        assert secret not in (tmp_path / "ledger.sqlite").read_bytes().decode("latin-1")
    finally:
        ledger.close()
