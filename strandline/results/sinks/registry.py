"""Table of the sinks: Strandline's own by name, and those of packages by their entry points. Imports nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from strandline.core.errors import FunctionUnusable, InvalidSettings, StrandlineError
from strandline.core.packages import PackagePart, parts_of_packages
from strandline.results.sinks.sink import Sink, SinkRequest

if TYPE_CHECKING:
    from strandline.core.settings import Settings
    from strandline.results.document import DocumentShape
    from strandline.results.writer import StoreWriter

GROUP = "strandline.sinks"
"""Entry point group of packages that provide sinks."""
PACKAGE = "sink"
"""Field of `emit` for sinks of packages."""
SINKS = {
    name: f"strandline.results.sinks.{folder}.sink"
    for name, folder in {
        "elasticsearch": "elasticsearch",
        "stream": "stream",
        "files": "files",
        "sql": "sql",
        PACKAGE: "package",
    }.items()
}
"""Field of `emit` -> module of the sink, whose `SINK` is the instance. Messages use this order. SQL uses the first sink
if a statement names none."""


class Emission(Protocol):
    """An emission of a document or of a checked pipeline."""

    @property
    def kind(self) -> str: ...

    @property
    def name(self) -> str: ...


class WrittenEmission(Emission, Protocol):
    """An emission of a checked pipeline."""

    @property
    def options(self) -> str: ...


@cache
def form_of(kind: str) -> Sink:
    """Return the sink with this field of `emit`. For a sink of a package, this is only the form in documents."""
    sink: Sink = import_module(SINKS[kind]).SINK
    return sink


@cache
def kind_of_streams() -> str:
    """Return the field of `emit` for streams of results. No package can provide one."""
    return next(kind for kind in SINKS if form_of(kind).is_stream)


def sink_of(emission: Emission) -> Sink:
    """Return the sink of an emission. If it is of a package that can't be used, only its writer raises an error."""
    return sink_and_name(emission)[0]


def sink_and_name(emission: Emission) -> tuple[Sink, str]:
    """Return the sink of an emission, and the name of the emission in it. See `sink_of`."""
    return _found(emission.kind, emission.name)


def sink_writer(settings: Settings, shape: DocumentShape, emission: WrittenEmission) -> StoreWriter:
    """Return the writer of an emission. Raises InvalidSettings; FunctionUnusable if its package can't be used."""
    sink, name = sink_and_name(emission)
    return sink.writer(SinkRequest(name, json.loads(emission.options or "{}"), shape, settings))


def store_of(emission: Emission) -> str:
    """Return the name of the emission in reports of an audit."""
    return form_of(emission.kind).store_prefix + emission.name


def stream_store(stream: str) -> str:
    """Return the name of a stream of results in reports of an audit."""
    return form_of(kind_of_streams()).store_prefix + stream


def sink_of_store(store: str) -> Sink:
    """Return the sink of a name in reports of an audit."""
    kinds = sorted(SINKS, key=lambda kind: -len(form_of(kind).store_prefix))
    kind = next(kind for kind in kinds if store.startswith(form_of(kind).store_prefix))
    return _found(kind, store.removeprefix(form_of(kind).store_prefix))[0]


def sink_of_stored(stored: str) -> tuple[Sink, str]:
    """Return the sink of a name in `WriteReport.stored`, and the name without its first word.

    If no sink has such names, the returned sink can't count results.
    """
    word, _, name = stored.partition(" ")
    kind = next((kind for kind in SINKS if form_of(kind).stored_word == word), None)
    return (Sink(), name) if kind is None else _found(kind, name)


def installed_sinks() -> dict[str, Sink]:
    """Return the sinks of Strandline and of packages by name."""
    own = {kind: form_of(kind) for kind in SINKS if kind != PACKAGE}
    return own | {use: _of_package(use) for use in _parts()}


def _found(kind: str, name: str) -> tuple[Sink, str]:
    if kind != PACKAGE:
        return form_of(kind), name
    use, _, name_there = name.partition(":")
    return _of_package(use), name_there


def _parts() -> Mapping[str, PackagePart]:
    return parts_of_packages(GROUP, "sink", frozenset(SINKS))


def _of_package(use: str) -> Sink:
    part = _parts().get(use)
    if part is None:
        known = ", ".join(sorted(_parts())) or "none"
        return _UnusableSink(
            InvalidSettings(
                f"no installed package provides a sink '{use}' (entry points of {GROUP}: {known}); install it for the control "
                "service and for each executor"
            )
        )
    try:
        sink = part.load(Sink)
    except FunctionUnusable as error:
        return _UnusableSink(error)
    if sink.is_stream or sink.has_generations:
        return _UnusableSink(
            FunctionUnusable(
                f"the sink {use} of {part.package} has is_stream or has_generations, and only Strandline's own sinks can have "
                "them; install another release of the package"
            )
        )
    return sink


class _UnusableSink(Sink):
    """A sink of a package that isn't installed, or that can't be used."""

    def __init__(self, error: StrandlineError) -> None:
        self._error = error

    def writer(self, request: SinkRequest) -> StoreWriter:
        raise self._error
