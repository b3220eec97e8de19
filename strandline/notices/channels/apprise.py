"""Channel `apprise`: services that the library Apprise knows. It is the extra `apprise`.

The library runs in a child process for each attempt (`apprise_process`), because its plugins connect to hosts by themselves. The
child process refuses connections to other hosts than those that are allowed, and is killed at the end of the attempt's time.
"""

from __future__ import annotations

import json
import subprocess
import sys

from strandline.core.document_model import DocumentModel
from strandline.core.errors import StrandlineError
from strandline.core.extras import require_module
from strandline.core.streams.entrances import SecretSpec
from strandline.notices.channels.tools import ChannelTools, NotConfirmed, Outgoing

_PROCESS = "strandline.notices.channels.apprise_process"


class AppriseSpec(DocumentModel):
    """A service, by its URL for Apprise."""

    url: SecretSpec
    """URL of Apprise, as `{secret: NAME}`: it contains logins. STRANDLINE_NOTICE_HOSTS and STRANDLINE_NOTICE_SECRET_HOSTS must
    contain the hosts to which it leads."""


class Fields(DocumentModel):
    apprise: AppriseSpec | None = None
    """A service that the library Apprise knows."""


def note(options: AppriseSpec) -> str | None:
    """Return the reason why this control service can't send. None if it can."""
    try:
        require_module("apprise")
    except StrandlineError as error:
        return str(error)
    return None


def send(options: AppriseSpec, message: Outgoing, tools: ChannelTools) -> None:
    """Send a message. Raises StrandlineError unless the plugin reports that the service has accepted it."""
    require_module("apprise")
    name = options.url.secret
    request = {
        "url": tools.secrets.value(name),
        "title": " ".join(str(message.content["title"]).split()),
        "body": str(message.content["text"]),
        "allowed": tools.allowed.entries,
        "secret_hosts": tools.secrets.hosts_of(name).entries,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", _PROCESS],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=tools.timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:  # the error itself contains the input
        raise NotConfirmed(f"apprise, secret {name}: the service did not respond in time") from None
    # Without a line, the process has crashed. Its other output can contain the URL, so it isn't displayed.
    error = json.loads(done.stdout)["error"] if done.stdout else f"the library ended with exit code {done.returncode}"
    if error is not None:
        raise NotConfirmed(f"apprise, secret {name}: {error}")
