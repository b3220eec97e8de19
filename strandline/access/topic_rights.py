"""Rights of the users of the MQTT server: a file in the form of Mosquitto's `acl_file`, with two additional kinds of lines.

- `user lundy`: the following lines are about this user.
- `topic write farm/+/power`: it can publish to matching topics. `topic FILTER` and `topic readwrite FILTER` mean the same.
- `topic deny farm/secret/#`: it can never publish to these topics.
- `client lundy-*`: it can connect only with these client identifiers; `*` matches the remainder of the name.
- `stream turbines`: its messages can go only to these streams, whatever their topics are.
- `pattern write dev/%u/#`: applies to every user: %u is its name, %c its client identifier.

A user can publish to topics that a `topic` or a `pattern` allows. A user that is not in the file and matches no pattern can't
publish. `topic read` lines are ignored, because clients can't subscribe here. In Mosquitto, lines before the first `user` are
about clients without a name. This server has no such clients, and refuses such lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strandline.core.errors import InvalidSettings

_WRITING = ("write", "readwrite")


@dataclass
class UserRights:
    """Lines about one user."""

    allowed: list[str] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    streams: set[str] = field(default_factory=set)


_NONE = UserRights()


class TopicRights:
    """Content of the file."""

    def __init__(self, users: dict[str, UserRights], patterns: Sequence[str]) -> None:
        self._users = users
        self._patterns = patterns

    def names(self, user: str) -> bool:
        """Return True if a line is about this user."""
        return user in self._users

    def may_connect(self, user: str, client_id: str) -> bool:
        """Return True if the user can have this client identifier."""
        clients = self._users.get(user, _NONE).clients
        return not clients or any(
            client_id.startswith(one[:-1]) if one.endswith("*") else client_id == one for one in clients
        )

    def may_publish(self, user: str, client_id: str, topic: str, stream: str) -> bool:
        """Return True if the user's message can go from this topic to this stream."""
        own = self._users.get(user, _NONE)
        if (own.streams and stream not in own.streams) or any(matches(one, topic) for one in own.denied):
            return False
        if any(matches(one, topic) for one in own.allowed):
            return True
        # A name that is a filter must not widen a pattern.
        if not {"+", "#", "/"}.isdisjoint(user + client_id):
            return False
        return any(matches(one.replace("%u", user).replace("%c", client_id), topic) for one in self._patterns)


def matches(topic_filter: str, topic: str) -> bool:
    """Return True if a topic matches a filter (MQTT 5.0, section 4.7)."""
    if topic.startswith("$") and not topic_filter.startswith("$"):
        return False
    levels, wanted = topic.split("/"), topic_filter.split("/")
    if wanted[-1] == "#":
        wanted.pop()
        if len(levels) < len(wanted):
            return False
        levels = levels[: len(wanted)]
    return len(levels) == len(wanted) and all(one in ("+", level) for one, level in zip(wanted, levels, strict=True))


def read_topic_rights(path: Path) -> TopicRights:
    """Return the rights. Raises InvalidSettings, which names the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(
            f"can't read the file of MQTT rights {path}: {error}; check its path and its rights"
        ) from error
    users: dict[str, UserRights] = {}
    patterns: list[str] = []
    present: UserRights | None = None
    for number, line in enumerate(lines, 1):
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if not word or word.startswith("#"):
            continue
        problem = "" if rest else "the first word has no value"
        if not problem and word == "user":
            present = users.setdefault(rest, UserRights())
        elif not problem and word in ("topic", "pattern"):
            problem = _add_filter(word, rest, present, patterns)
        elif not problem and word in ("client", "stream"):
            if present is None:
                problem = "it is before the first line `user NAME`"
            elif word == "client":
                present.clients.append(rest)
            else:
                present.streams.add(rest)
        elif not problem:
            problem = "a line must begin with user, topic, pattern, client, or stream"
        if problem:
            raise InvalidSettings(f"{path}:{number}: {problem}; docs/mqtt.md explains the file")
    return TopicRights(users, patterns)


def _add_filter(word: str, rest: str, present: UserRights | None, patterns: list[str]) -> str:
    """Add a `topic` or a `pattern`. Return the error, or an empty string."""
    access, _, topic_filter = rest.partition(" ")
    if access not in (*_WRITING, "read", "deny"):
        access, topic_filter = "readwrite", rest
    topic_filter = topic_filter.strip()
    levels = topic_filter.split("/")
    if not topic_filter or "#" in levels[:-1] or any(len(one) > 1 and not {"+", "#"}.isdisjoint(one) for one in levels):
        return f"{topic_filter!r} is not a topic filter"
    if word == "pattern":
        if access == "deny":
            return "a pattern can't deny; deny topics for each user"
        if access in _WRITING:
            patterns.append(topic_filter)
        return ""
    if present is None:
        return "it is about clients without a name, which don't exist here; move it after a line `user NAME`"
    if access == "deny":
        present.denied.append(topic_filter)
    elif access in _WRITING:
        present.allowed.append(topic_filter)
    return ""
