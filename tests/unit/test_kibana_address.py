"""The address of Kibana that the console gets from the settings of a control service."""

from __future__ import annotations

import pytest

from strandline.core.errors import InvalidSettings
from strandline.services.control import ControlSettings, _kibana_url


@pytest.mark.parametrize(
    ("setting", "address"),
    [
        (None, None),
        ("https://kibana.example.org/", "https://kibana.example.org"),
        ("http://admin:secret@kibana:5601/base", "http://kibana:5601/base"),
    ],
)
def test_a_browser_gets_the_address_without_a_password(setting: str | None, address: str | None) -> None:
    assert _kibana_url(ControlSettings(kibana_url=setting)) == address


def test_an_address_that_a_browser_would_run_is_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"STRANDLINE_KIBANA_URL must begin with http:// or https://"):
        _kibana_url(ControlSettings(kibana_url="javascript:alert(1)"))
