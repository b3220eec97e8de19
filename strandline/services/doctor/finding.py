"""Findings of the doctor: a message about one subject, and a remedy if there is a problem."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from pydantic import SecretStr

from strandline.core.errors import StrandlineError
from strandline.core.settings import Settings, secret_names
from strandline.core.urls import without_credentials


class State(StrEnum):
    """State of a subject. Only `wrong` is a failure."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """One finding."""

    subject: str
    state: State
    message: str
    """What was found."""
    remedy: str = ""
    """What to do; empty if the state is ok."""


Check = Callable[[], Iterable[Finding]]
"""Check of one subject. Can raise StrandlineError, which becomes a finding."""


def ok(subject: str, message: str) -> Finding:
    return Finding(subject, State.OK, message)


def warning(subject: str, message: str, remedy: str) -> Finding:
    return Finding(subject, State.WARNING, message, remedy)


def wrong(subject: str, message: str, remedy: str) -> Finding:
    return Finding(subject, State.WRONG, message, remedy)


def examine(checks: Mapping[str, Check], deadline_s: float, settings: Settings) -> list[Finding]:
    """Run all checks in parallel, and return their findings in the order of the checks. A check that doesn't end by the common
    deadline results in one finding. No finding contains a secret of the settings."""
    patients = [_Patient(subject, check) for subject, check in checks.items()]
    for patient in patients:
        patient.thread.start()
    deadline = time.monotonic() + deadline_s
    found = [finding for patient in patients for finding in patient.findings(deadline, deadline_s)]
    return [_without_secrets(one, settings) for one in found]


class _Patient:
    """A running check. Its thread doesn't keep the process alive, because a client may never give up."""

    def __init__(self, subject: str, check: Check) -> None:
        self._subject = subject
        self._check = check
        self._found: list[Finding] = []
        self.thread = threading.Thread(target=self._run, name=f"doctor-{subject}", daemon=True)

    def findings(self, deadline: float, deadline_s: float) -> list[Finding]:
        self.thread.join(max(0.0, deadline - time.monotonic()))
        found = list(self._found)
        if self.thread.is_alive():
            remedy = "check whether a firewall drops its packets, and whether it is overloaded"
            found.append(wrong(self._subject, f"a check did not end within {deadline_s:g} s", remedy))
        return found

    def _run(self) -> None:
        try:
            for finding in self._check():
                self._found.append(finding)
        except StrandlineError as error:
            message, _, remedy = str(error).partition("; ")
            self._found.append(wrong(self._subject, message, remedy or "correct the problem that the message names"))
        except Exception as error:  # noqa: BLE001  # a check that fails must not hide the findings of the others
            remedy = "this is a fault of the check itself; report it"
            self._found.append(wrong(self._subject, f"a check failed: {type(error).__name__}: {error}", remedy))


def _without_secrets(finding: Finding, settings: Settings) -> Finding:
    """Remove secrets from a finding. Errors contain none anyway; this is the last protection."""
    message, remedy = finding.message, finding.remedy
    for secret in _secrets(settings):
        message, remedy = message.replace(secret, "***"), remedy.replace(secret, "***")
    return replace(finding, message=message, remedy=remedy)


def _secrets(settings: Settings) -> Iterator[str]:
    for name in secret_names(type(settings)):
        value = getattr(settings, name)
        for one in value.values() if isinstance(value, dict) else [value]:
            text = one.get_secret_value() if isinstance(one, SecretStr) else one
            if not isinstance(one, SecretStr) and text is not None:  # in a URL, only user and password are secret
                shown = without_credentials(str(text)).partition("://")[2]
                text = str(text).partition("://")[2].removesuffix(shown).rstrip("@").rpartition(":")[2]
            if text is not None and len(text) > 3:
                yield text
