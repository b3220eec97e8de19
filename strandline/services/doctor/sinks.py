"""Servers that only a sink uses, checked by the sink itself."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.core.settings import Settings
from strandline.core.urls import without_credentials
from strandline.results.sinks.sink import Sink
from strandline.services.doctor.finding import Finding, ok, wrong


def subject_of(name: str, sink: Sink) -> str:
    """Return the subject of findings about the sink without its target. `name`: the name in documents."""
    return sink.subject or f"sink {name}"


def check_sink(name: str, sink: Sink, settings: Settings) -> Iterator[Finding]:
    """Yield the findings of the sink's own check. Raises InvalidSettings if its settings are invalid."""
    subject = subject_of(name, sink)
    if not sink.subject and (target := sink.target(settings)):
        subject += f" ({without_credentials(target)})"
    for message, remedy in sink.examine(settings):
        yield wrong(subject, message, remedy) if remedy else ok(subject, message)
