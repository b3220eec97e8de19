"""A document of a format whose optional package isn't installed is refused, and names the extra."""

from __future__ import annotations

import pytest

from strandline.core import extras
from strandline.core.documents import YamlDocument
from strandline.core.errors import InvalidDocument
from strandline.core.extras import EXTRAS
from strandline.core.streams.format_registry import FORMATS, built_in_form
from strandline.core.streams.stream import StreamSpec

DOCUMENT = {"stream": "s", "schema": {"site": "string"}, "partitions": 1}


@pytest.fixture
def _no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: extras._ExtraFinder().find_spec(name, None))


@pytest.mark.usefixtures("_no_extras")
@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("avro", "avro"),
        ("protobuf", "protobuf"),
        ("otlp", "protobuf"),
        ("prometheus", "protobuf"),
        ("sparkplug", "protobuf"),
    ],
)
def test_a_format_without_its_package_names_the_extra(name: str, extra: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        StreamSpec.parse(YamlDocument("stream", "s", {**DOCUMENT, "format": name}))
    assert f"pip install 'strandline[{extra}]'" in str(refused.value)


@pytest.mark.usefixtures("_no_extras")
@pytest.mark.parametrize("name", [name for name in FORMATS if built_in_form(name).module is None])
def test_other_formats_need_no_extra(name: str) -> None:
    problem = ""
    try:
        StreamSpec.parse(YamlDocument("stream", "s", {**DOCUMENT, "format": name}))
    except InvalidDocument as refused:  # its options are missing
        problem = str(refused)
    assert "pip install" not in problem


@pytest.mark.usefixtures("_no_extras")
def test_a_stored_document_is_read_without_the_package() -> None:
    assert StreamSpec.from_document({**DOCUMENT, "format": "otlp"}).format == "otlp"


def test_the_modules_of_formats_are_those_of_extras() -> None:
    modules = {module for name in FORMATS if (module := built_in_form(name).module) is not None}
    assert modules == {"fastavro", "google.protobuf"} <= EXTRAS.keys()
