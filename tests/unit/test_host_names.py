"""The name in a `Host` header."""

import pytest

from strandline.core.host_names import host_name


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"),
        ("LocalHost:8080", "localhost"),
        ("127.0.0.1:8081", "127.0.0.1"),
        ("[::1]:8080", "::1"),
        ("[fe80::1", ""),
        ("", ""),
        (":8080", ""),
    ],
)
def test_a_name_has_no_port_no_brackets_and_no_capitals(header, name):
    assert host_name(header) == name
