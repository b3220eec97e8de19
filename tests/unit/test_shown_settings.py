"""The settings that the REST API shows: no secret leaves the process, also of settings that don't exist yet."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, SecretStr

from strandline.core.settings import Settings, secret_names
from strandline.ledger.ledger import Ledger
from strandline.services.control import ControlSettings
from strandline.services.jobs.shown_settings import SettingView, setting_views
from tests.support.control import Api
from tests.support.settings_classes import all_settings

SECRET = "Hidd3n"
URL = f"postgresql+psycopg://reader:{SECRET}@db.example:5432/farm?password={SECRET}#{SECRET}"


def shown(settings: Settings, environment: dict[str, str] | None = None) -> dict[str, SettingView]:
    return {one.name.removeprefix("STRANDLINE_").lower(): one for one in setting_views(settings, environment or {})}


def planted(kind: type[Settings], name: str) -> Any:
    """Return a value with the secret, of the type of the setting."""
    if "dict" in str(kind.model_fields[name].annotation):
        return {"one": URL}
    return URL if name.endswith("_url") else SECRET


@pytest.mark.guarantee(
    "G1140",
    "`GET /v1/settings` returns no secret: no value whose type is secret, and neither user, password, nor query of a "
    "URL. This is true for new settings, too.",
    promise="secrets-and-connections-are-protected",
)
@pytest.mark.parametrize("name", secret_names(ControlSettings))
def test_no_secret_of_a_setting_is_shown(name: str) -> None:
    settings = ControlSettings.model_construct(**{name: planted(ControlSettings, name)})
    views = shown(settings)
    assert SECRET not in json.dumps([asdict(one) for one in views.values()])
    assert (views[name].is_secret, views[name].is_set, views[name].is_changed) == (True, True, True)


class NewSettings(ControlSettings):
    """Settings of each shape, which a later release could add."""

    agent_login: SecretStr | None = None
    agent_logins: dict[str, list[SecretStr]] = Field(default_factory=dict)
    agent_token: str = ""
    agent_address: str | None = None
    agent_addresses: dict[str, str] = Field(default_factory=dict)
    agent_servers: tuple[str, ...] = ()
    agent_server: str = ""
    sql_sources: dict[str, str] = Field(default_factory=dict)  # type: ignore[assignment]
    agent_key: Path | None = None
    """File of the key."""


@pytest.mark.guarantee("G1140")
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("agent_login", SecretStr(SECRET), None),
        ("agent_logins", {"one": [SecretStr(SECRET)]}, None),
        ("agent_token", SECRET, None),
        ("sql_sources", {"one": SECRET}, None),
        ("agent_address", URL, "postgresql+psycopg://db.example:5432/farm"),
        ("agent_addresses", {"one": URL}, {"one": "postgresql+psycopg://db.example:5432/farm"}),
        ("agent_servers", (f"me:{SECRET}@host:1", "host:2"), ["host:1", "host:2"]),
        ("agent_server", f"http://me:{SECRET}@{SECRET}@host/", "http://host/"),
    ],
)
def test_a_new_setting_shows_no_secret(name: str, value: Any, expected: Any) -> None:
    views = shown(NewSettings.model_construct(**{name: value}))
    assert SECRET not in json.dumps([asdict(one) for one in views.values()])
    assert (views[name].value, views[name].is_secret, views[name].is_set) == (expected, True, True)


def test_other_values_are_shown_with_their_source_and_meaning() -> None:
    settings = NewSettings.model_construct(
        agent_key=Path("/etc/agent.pem"), oidc_rights={"ops@example.org": "admin"}, kafka_password=SecretStr(SECRET)
    )
    found = shown(settings, {"STRANDLINE_KAFKA_PASSWORD_FILE": "/run/password"})
    key = found["agent_key"]
    assert (key.value, key.meaning, key.source, key.is_secret) == (
        "/etc/agent.pem",
        "File of the key.",
        "environment",
        False,
    )
    assert found["oidc_rights"].value == {"ops@example.org": "admin"}
    assert (found["kafka_password"].source, found["kafka_password"].value) == ("file", None)
    port = found["control_port"]
    assert (port.value, port.default, port.source, port.is_changed) == (8080, 8080, "default", False)


def test_each_setting_of_a_control_service_has_a_meaning() -> None:
    assert [one.name for one in setting_views(ControlSettings.model_construct(), {}) if len(one.meaning) < 10] == []
    assert ControlSettings in all_settings()


def test_the_api_returns_the_settings_of_its_service(tmp_path: Path) -> None:
    with closing(Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")) as ledger:
        api = Api(ledger)
        assert api.ask("GET", "/v1/settings").json() == {"settings": []}
        vars(api._dependencies)["settings"] = lambda: setting_views(ControlSettings.model_construct(), {})
        names = [one["name"] for one in api.ask("GET", "/v1/settings").json()["settings"]]
    assert names == [f"STRANDLINE_{name.upper()}" for name in sorted(ControlSettings.model_fields)]
