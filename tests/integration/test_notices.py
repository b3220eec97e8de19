"""Notices from a control service in a process of its own to an HTTP receiver and a mail server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from strandline.ledger.ledger import Ledger
from strandline.ledger.states import JobState
from strandline.services.certificates import make_dev_certificates
from tests.support.notices import HttpReceiver, SmtpReceiver
from tests.support.ports import free_port
from tests.support.waiting import stretched, wait_until

LIMIT_S = 90.0
FAILURES = (("power", "the index turbine-minute is read-only"), ("load", "no space left on device"))


@contextmanager
def a_control_service(directory: Path, port: int, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a control service without servers behind it."""
    environment = os.environ | {
        "STRANDLINE_DATA_DIR": str(directory / "data"),
        "STRANDLINE_LEDGER_URL": f"sqlite:///{directory / 'ledger.sqlite'}",
        "STRANDLINE_CONTROL_PORT": str(port),
        "STRANDLINE_KAFKA_BOOTSTRAP": "127.0.0.1:1",
        "STRANDLINE_ELASTICSEARCH_URL": "http://127.0.0.1:1",
        "STRANDLINE_STANDBYS": "0",
        **settings,
    }
    with (directory / "control.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "strandline.services.control"], env=environment, stdout=log, stderr=log
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz").status_code == 200
    except httpx.HTTPError:
        return False


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def _fail(ledger: Ledger, job: str, message: str) -> None:
    ledger.submit_job(job, "text", {"pipeline": job, "input": {"stream": "turbines"}})
    ledger.move_job(job, JobState.FAILED, message)


@pytest.mark.long
def test_a_failed_job_is_reported_by_webhook_and_mail_after_kills_of_the_control_service(tmp_path: Path) -> None:
    certificates = make_dev_certificates(tmp_path / "certificates", ["localhost"])
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "MAIL").write_text("canary-of-mail\n")
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    ledger.put_stream("turbines", {"stream": "turbines", "retention": "7d"})
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    settings = {
        "STRANDLINE_NOTICE_HOSTS": '["127.0.0.1", "localhost"]',
        "STRANDLINE_NOTICE_SECRETS_DIR": str(tmp_path / "secrets"),
        "STRANDLINE_NOTICE_SECRET_HOSTS": '{"MAIL": ["localhost"]}',
        "SSL_CERT_FILE": str(certificates.ca),
    }
    login = ("ops", "canary-of-mail")
    with HttpReceiver() as http, SmtpReceiver(certificates.server, certificates.server_key, login) as smtp:
        text = f"""
notice: night
when: [job_failed]
group: {{wait: 0s, every: 0s}}
to:
  - webhook: {{url: "{http.url}"}}
  - mail:
      to: [night@example.org]
      from: s@example.org
      server: localhost
      port: {smtp.port}
      user: ops
      password: {{secret: MAIL}}
"""
        with a_control_service(tmp_path, port, **settings) as process:
            wait_until(lambda: _answers(url), bool, "the control service", LIMIT_S)
            headers = {"Content-Type": "application/yaml"}
            applied = httpx.post(f"{url}/v1/documents", content=text, headers=headers, timeout=60)
            assert applied.status_code == 200, applied.text
            tested = subprocess.run(
                [sys.executable, "-m", "strandline.services.cli.commands", "notice", "test", "night", "--url", url],
                capture_output=True,
                text=True,
                timeout=stretched(120),
            )
            assert tested.returncode == 0, tested.stderr
            assert "webhook: confirmed" in tested.stdout and "mail: confirmed" in tested.stdout
            _kill(process)
        # A job fails while no control service runs, so that no supervisor moves it.
        for number, (job, message) in enumerate(FAILURES, 2):
            _fail(ledger, job, message)
            with a_control_service(tmp_path, port, **settings) as process:
                count = lambda: (len(http.received), len(smtp.received))  # noqa: E731
                wait_until(lambda count=count, number=number: count() == (number, number), bool, "reports", LIMIT_S)
                _kill(process)
        titles = [one.json["title"] for one in http.received]
        assert titles == ["Test of notice night", "Job power failed", "Job load failed"]
        assert [mail["Subject"].partition("] ")[2] for mail in smtp.received] == titles
        assert "turbine-minute is read-only" in smtp.received[1].get_content()
        print(smtp.received[1].get_content())
    ledger.close()
    everything = [*(one.body for one in http.received), (tmp_path / "control.log").read_bytes()]
    assert not any(b"canary" in one for one in everything)
