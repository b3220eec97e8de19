"""The login of a request to Elasticsearch. No request is sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from strandline.core.errors import InvalidSettings
from strandline.results import elasticsearch_client
from strandline.results.elasticsearch_client import _client_of_settings

URL = "http://nowhere:9200"


@pytest.mark.guarantee("G637")
def test_a_login_that_is_just_being_replaced_leaves_the_one_before_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the login is missing for a moment. This is reported once, and the new login counts when it is readable."""
    monkeypatch.setattr(elasticsearch_client, "_current_clients", {})
    file = tmp_path / "password"
    monkeypatch.setenv("STRANDLINE_ELASTICSEARCH_URL", URL)
    monkeypatch.setenv("STRANDLINE_ELASTICSEARCH_USERNAME", "writer")
    monkeypatch.setenv("STRANDLINE_ELASTICSEARCH_PASSWORD_FILE", str(file))
    with pytest.raises(InvalidSettings, match="can't be read"):
        _client_of_settings(URL)
    file.write_text("old")
    old = _client_of_settings(URL)
    file.unlink()
    with capture_logs() as said:
        assert _client_of_settings(URL) is _client_of_settings(URL) is old
    assert [line["action"] for line in said] == ["login_unusable"]
    assert str(file) in said[0]["reason"]
    file.write_text("another")
    new = _client_of_settings(URL)
    assert new is not old
    file.unlink()
    with capture_logs() as said:
        assert _client_of_settings(URL) is new
    assert len(said) == 1
    monkeypatch.setenv("STRANDLINE_ELASTICSEARCH_USERNAME", "reader")
    with pytest.raises(InvalidSettings, match="can't be read"):
        _client_of_settings(URL)
