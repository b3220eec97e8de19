"""Table of channels: keyword in the document -> module. Another channel is a module and a line here.

A module has:

* `Fields`: a `DocumentModel` with one field, the keyword, whose value has the options of the channel;
* `send(options, message, tools)`: returns when the receiver has confirmed the message. It raises StrandlineError if the
  receiver hasn't. The message is sent again later;
* optionally `note(options)`: returns the reason why this control service can't send, or None. Applying a notice shows it.
"""

from __future__ import annotations

import importlib
from types import ModuleType

_FOLDER = "strandline.notices.channels"
CHANNELS = {
    "webhook": "webhook",
    "mail": "mail",
    "apprise": "apprise",
}
"""Keyword -> module."""


def channel_of(keyword: str) -> ModuleType:
    """Return the module of a channel."""
    return importlib.import_module(f"{_FOLDER}.{CHANNELS[keyword]}")
