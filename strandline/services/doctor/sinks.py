"""Servers that only a sink uses, checked by the sink itself."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.core.settings import Settings
from strandline.results.sinks.sink import Sink
from strandline.services.doctor.finding import Finding, ok, wrong


def check_sink(sink: Sink, settings: Settings) -> Iterator[Finding]:
    """Yield the findings of the sink's own check. Raises InvalidSettings if its settings are invalid."""
    for message, remedy in sink.examine(settings):
        yield wrong(sink.subject, message, remedy) if remedy else ok(sink.subject, message)
