"""Table of the record formats: those of Strandline by name, and those of packages by their entry points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Literal

from strandline.core.errors import FunctionUnusable
from strandline.core.packages import PackagePart, parts_of_packages
from strandline.core.streams.format import StreamFormat, UnusableFormat

GROUP = "strandline.formats"
"""Group of the entry points with which packages provide formats."""
_FOLDER = "strandline.processing.formats"
FORMATS = (
    "json", "value", "raw", "csv", "msgpack", "cbor", "influx", "avro", "protobuf", "debezium", "otlp", "prometheus",
    "sparkplug", "senml", "struct",
)  # fmt: skip
"""The formats of Strandline, in the order of messages. Each one has a folder with its name, whose `format.py` contains the
instance `FORMAT`."""


def module_of(name: str, part: Literal["format", "reader"]) -> str:
    """Return the name of a module of a format of Strandline."""
    return f"{_FOLDER}.{name}.{part}"


def form_of(name: str) -> StreamFormat:
    """Return the format with this name. If no installed package has it, it is an `UnusableFormat`."""
    return built_in_form(name) if name in FORMATS else _of_package(name)


@cache
def built_in_form(name: str) -> StreamFormat:
    """Return a format of Strandline."""
    form: StreamFormat = import_module(module_of(name, "format")).FORMAT
    return form


def all_forms() -> Iterator[StreamFormat]:
    """Yield the formats of Strandline, and the usable ones of packages."""
    yield from map(built_in_form, FORMATS)
    yield from (form for form in map(_of_package, sorted(_parts())) if form.unusable is None)


def format_names() -> list[str]:
    """Return the names of all formats, those of Strandline first."""
    return [*FORMATS, *sorted(_parts())]


def names_with(forms: Iterable[StreamFormat], attribute: str) -> list[str]:
    """Return the names of the formats for which an attribute is true."""
    return [form.name for form in forms if getattr(form, attribute)]


def package_of(name: str) -> str:
    """Return the package that adds a format, with its release. Empty if no package does."""
    part = None if name in FORMATS else _parts().get(name)
    return "" if part is None else part.package


def require_package(name: str, wanted: str) -> None:
    """Raise FunctionUnusable unless this package adds the format in this process. `wanted`: as `package_of` returns it."""
    here = package_of(name)
    if here != wanted:
        raise FunctionUnusable(
            f"the format {name} comes from {here or 'no package'} here, and from {wanted or 'no package'} where "
            "the job was started; install the same package everywhere, and restart the job"
        )


def forget() -> None:
    """Read the formats of packages again at their next use. For tests that install packages."""
    _of_package.cache_clear()


def _parts() -> Mapping[str, PackagePart]:
    return parts_of_packages(GROUP, "format", frozenset(FORMATS))


@cache
def _of_package(name: str) -> StreamFormat:
    part = _parts().get(name)
    if part is None:
        known = ", ".join(sorted(_parts())) or "none"
        return UnusableFormat(
            name,
            FunctionUnusable(
                f"no installed package has a format '{name}' (entry points of {GROUP}: {known}); install one "
                "for the control service, the gateways, and each executor"
            ),
        )
    try:
        form = part.load(StreamFormat)
    except FunctionUnusable as error:
        return UnusableFormat(name, error)
    if form.name != name:
        return UnusableFormat(
            name,
            FunctionUnusable(
                f"the format {name} of {part.package} has the name {form.name} in its code; install a release "
                "of the package in which both names are equal"
            ),
        )
    return form
