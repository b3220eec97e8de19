"""URLs in messages and logs."""

from __future__ import annotations


def without_credentials(url: str) -> str:
    """Return the URL without its user and password, for messages, log lines, and responses. A password that wasn't
    percent-encoded can contain any character, so everything up to the last `@` is removed."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if separator else url.rpartition("@")[2]
