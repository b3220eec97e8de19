"""The format of a package: `tests/plugins/acme_frames` is defined outside of Strandline, and has the contract of its formats.

`tests/contract/test_formats.py` checks what it reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline.core.documents import YamlDocument
from strandline.core.errors import FunctionUnusable, InvalidDocument
from strandline.core.streams.format_registry import form_of, package_of
from strandline.core.streams.stream import StreamSpec
from strandline.frontends.document_files import with_files
from strandline.processing.desk.desk_pipeline import read_pipeline
from strandline.processing.formats.format import format_of
from strandline.processing.formats.record_rows import RowReader, record_format
from tests.support.plugins import forget_toys, install_toys
from tests.unit import test_http_answers
from tests.unit.test_command_line import Say, say
from tests.unit.test_http_answers import ToldStreams, ToldWriter, answer

__all__ = ["say"]

NAME = "acme_frames"
DOCUMENT: dict[str, Any] = {
    "stream": "frames",
    "format": NAME,
    "format_options": {"byte_order": "big"},
    "schema": {"device": "string", "time": "timestamp", "value": "double?"},
}
PIPELINE = f"""\
{json.dumps(DOCUMENT)}
---
pipeline: frames
input: {{stream: frames}}
event_time: {{field: time, delay: 10s}}
steps:
  - window: {{name: per_minute, tumbling: 1m, by: [device], aggregate: {{n: count(*), high: max(value)}}}}
    emit: [{{elasticsearch: frame-minute}}]
"""


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install_toys(monkeypatch, NAME)
    yield
    forget_toys(monkeypatch)


def frames(count: int = 3) -> list[bytes]:
    from acme_frames.frame import frame

    return [frame("pump-1", 1_764_000_000_000 + at, at / 4, "big") for at in range(count)]


def install(directory: Path, package: str, entry_point: str, module: str = "") -> None:
    """Create a package with this entry point in the directory."""
    metadata = directory / f"{package}-2.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.0\n")
    (metadata / "entry_points.txt").write_text(f"[strandline.formats]\n{entry_point}\n")
    (directory / f"{package.replace('-', '_')}.py").write_text(module)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"format_options": {"byte_order": "middle"}},
            "format_options.byte_order: expected 'little' or 'big', got 'middle'",
        ),
        ({"format_options": {"order": "big"}}, "format_options.order: unknown field 'order'"),
        ({"schema": {"name": "string"}}, "schema.name: a frame has device, time, and value; remove the field"),
        ({"explode": "$.all"}, "explode: is for 'format: json | avro | protobuf'"),
        (
            {"format": "acme_frame"},
            "expected 'json', 'value', .*, 'sparkplug', 'senml', 'struct' or 'acme_frames', got 'acme_frame'",
        ),
        ({"format": "json"}, "format_options: the format json has none of these options; remove it"),
    ],
)
def test_a_wrong_document_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidDocument, match=message):
        StreamSpec.parse(YamlDocument("stream", "frames", DOCUMENT | change))


def test_a_pipeline_reads_its_records_at_the_desk(say: Say, tmp_path: Path) -> None:
    document, records = tmp_path / "frames.yaml", tmp_path / "some.frames"
    document.write_text(PIPELINE)
    records.write_bytes(b"".join(frames()))
    said = say("pipeline", "run", str(document), "--input", str(records), "--json")
    assert said.code == 0, said
    assert '"high": 0.5' in said.out.replace('"high":0.5', '"high": 0.5'), said.out


def test_a_gateway_accepts_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_http_answers, "RECORD_BYTES_MAX", 100)
    writer, streams = ToldWriter(), ToldStreams(StreamSpec.from_document(DOCUMENT))
    (body,) = frames(1)
    for content_type in ("application/vnd.acme.frame", "application/octet-stream"):
        found, _ = answer(writer, streams, body, url=b"/v1/streams/frames/records", content_type=content_type)
        assert (found.status, found.body) == (200, b'{"accepted":1}')
    assert [record for record, _ in writer.appended] == [(body, None)] * 2
    assert {about["content_type"] for _, about in writer.appended} == {b"application/vnd.acme.frame"}


def test_a_document_is_proposed(say: Say, tmp_path: Path) -> None:
    sample = tmp_path / "sample"
    sample.write_bytes(b"".join(frames()))
    said = say("stream", "infer", "--sample", str(sample), "--name", "frames")
    assert said.code == 0, said
    assert "format: acme_frames" in said.out


def test_its_package_is_a_part_of_what_results_depend_on() -> None:
    pipeline = read_pipeline(PIPELINE.encode(), "frames.yaml")
    assert pipeline.inputs[0].identity(["value"])["format"] == [NAME, "acme-frames 1.0"]
    config = record_format(StreamSpec.from_document(DOCUMENT))
    assert RowReader(config)
    with pytest.raises(
        FunctionUnusable, match=r"acme_frames comes from acme-frames 1\.0 here, and from acme-frames 0\.9 where"
    ):
        RowReader(replace(config, package="acme-frames 0.9"))
    plain = PIPELINE.replace(NAME, "json").replace('"format_options": {"byte_order": "big"}, ', "")
    assert "format" not in read_pipeline(plain.encode(), "frames.yaml").inputs[0].identity(["value"])


@pytest.mark.guarantee(
    "G876",
    "If the package of a format isn't installed, stored streams stay readable, and gateways store no request that "
    "they can't split into records.",
    promise="a-record-is-read-in-the-same-way-everywhere",
)
def test_a_stored_stream_stays_readable_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = StreamSpec.from_document(DOCUMENT).as_document()
    (body,) = frames(1)
    forget_toys(monkeypatch)
    spec = StreamSpec.from_document(stored)
    assert spec.as_document() == stored
    writer = ToldWriter()
    found, _ = answer(
        writer, ToldStreams(spec), body, url=b"/v1/streams/frames/records", content_type="application/json"
    )
    assert (found.status, writer.appended) == (503, [])
    assert b"no installed package has a format 'acme_frames'" in found.body
    assert b"nothing of this request was persisted" in found.body
    with pytest.raises(FunctionUnusable, match="no installed package has a format 'acme_frames'"):
        record_format(spec)


def test_two_packages_with_one_format_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "other-frames", f"{NAME} = other_frames:FORMAT")
    monkeypatch.syspath_prepend(tmp_path)
    install_toys(monkeypatch)
    with pytest.raises(
        FunctionUnusable, match=r"the format acme_frames is in acme-frames 1\.0 and in other-frames 2\.0"
    ):
        format_of(NAME)


def test_no_package_replaces_a_format_of_strandline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "other-json", "json = other_json:FORMAT", "FORMAT = None")
    monkeypatch.syspath_prepend(tmp_path)
    install_toys(monkeypatch)
    assert package_of("json") == ""
    assert type(format_of("json")).__module__.startswith("strandline.")


def test_a_part_that_is_no_format_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "odd", "odd = odd:FORMAT", "FORMAT = 7")
    monkeypatch.syspath_prepend(tmp_path)
    install_toys(monkeypatch)
    assert "the format odd of odd 2.0 is a int" in str(form_of("odd").unusable)


def test_files_that_options_name_are_written_into_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from acme_frames.format import FORMAT

    from strandline.core.streams.format import NamedFile

    monkeypatch.setattr(type(FORMAT), "files", {"order_file": NamedFile("byte_order", is_text=True)})
    (tmp_path / "order.txt").write_text("big")
    text = PIPELINE.replace('"byte_order": "big"', '"order_file": "order.txt"')
    assert '"byte_order": "big"' in with_files(text.encode(), tmp_path / "frames.yaml").decode().replace(
        'byte_order: "big"', '"byte_order": "big"'
    )


def test_no_code_outside_the_folder_of_a_format_asks_which_one_it_is() -> None:
    root = Path(strandline.__file__).parent
    asked = [
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(r"""\b(format|form\.name|config\.name) (==|!=|in|not in) \(?["']""", path.read_text())
    ]
    # A protocol that is of one format: InfluxDB's writes.
    assert [path for path in asked if not path.startswith("processing/formats/")] == ["ingest/http/influx_api.py"]
