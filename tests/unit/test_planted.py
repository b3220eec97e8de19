"""The search for planted secrets finds them in every form, and nothing else."""

from __future__ import annotations

import base64
from urllib.parse import quote

import pytest

from tests.support.planted import files_below, leaks, new_secret

SECRET = new_secret("a")


@pytest.mark.guarantee(
    "G422",
    "A secret of any setting, a token, or a key is in no log, message, status, metric, answer, process argument, "
    "ledger value, or record, even if it is wrong. The doctor accepts servers with TLS and login, and a stack starts "
    "with them.",
    promise="secrets-and-connections-are-protected",
)
@pytest.mark.parametrize(
    "leaked",
    [
        SECRET.encode(),
        f"postgresql://me:{quote(SECRET, safe='')}@host".encode(),
        b"Authorization: Basic " + base64.b64encode(f"m:{SECRET}".encode()),
        b"Authorization: Basic " + base64.b64encode(f"me:{SECRET}".encode()),
        b"Authorization: Basic " + base64.b64encode(f"you:{SECRET}!".encode()),
        SECRET.encode().hex().encode(),
    ],
    ids=["as it is", "in a URL", "in base64", "in base64, one further", "in base64, two further", "in hex"],
)
def test_a_secret_is_found_in_every_form(leaked: bytes) -> None:
    planted = {"a": SECRET, "b": new_secret("b")}
    assert leaks(planted, [("fine", b"nothing"), ("log", b"before " + leaked + b" behind")]) == ["a in log"]


def test_files_that_are_meant_to_hold_it_are_left_out(tmp_path) -> None:
    meant, other = tmp_path / "meant", tmp_path / "deep" / "other"
    other.parent.mkdir()
    meant.write_text(SECRET)
    other.write_text(f"x{SECRET}")
    assert leaks({"a": SECRET}, files_below(tmp_path, [meant])) == [f"a in {other}"]
