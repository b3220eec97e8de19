"""URLs in messages and logs."""

from __future__ import annotations


def without_credentials(url: str) -> str:
    """The URL without its user and password, as every message, log line and answer shows it.

    A password that was not percent-encoded may hold any character, so all up to the last `@` is left out.
    """
    scheme, separator, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if separator else url.rpartition("@")[2]
