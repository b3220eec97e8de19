"""Settings that are kept until the environment or a file of a secret changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strandline.core.settings import Settings


def test_settings_are_read_again_when_a_variable_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRANDLINE_KAFKA_BOOTSTRAP", "one:9092")
    first = Settings.read()
    assert Settings.read() is first
    monkeypatch.setenv("STRANDLINE_KAFKA_BOOTSTRAP", "two:9092")
    assert (first.kafka_bootstrap, Settings.read().kafka_bootstrap) == ("one:9092", "two:9092")
    monkeypatch.delenv("STRANDLINE_KAFKA_BOOTSTRAP")
    assert Settings.read().kafka_bootstrap == Settings.model_fields["kafka_bootstrap"].default


def test_a_secret_is_read_again_when_its_file_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "password"
    monkeypatch.setenv("STRANDLINE_LEDGER_PASSWORD_FILE", str(file))

    def password_after(text: str, age_s: float) -> str:
        file.write_text(text, encoding="utf-8")
        changed_s = file.stat().st_mtime - age_s
        os.utime(file, (changed_s, changed_s))
        found = Settings.read().ledger_password
        assert found is not None
        return found.get_secret_value()

    assert [password_after("first", 60.0), password_after("second", 30.0)] == ["first", "second"]
    kept = Settings.read()
    assert Settings.read() is kept

    # Rewritten twice in a moment: the second time, the file has the same stamp as the first time.
    assert password_after("third", 0.0) == "third"
    state = file.stat()
    file.write_text("other", encoding="utf-8")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    found = Settings.read().ledger_password
    assert found is not None and found.get_secret_value() == "other"
