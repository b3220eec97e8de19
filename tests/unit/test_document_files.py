"""A document that names files is registered with their content."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from strandline.core.documents import read_documents
from strandline.core.errors import InvalidDocument
from strandline.core.streams.stream import StreamSpec
from strandline.frontends.document_files import with_files
from tests.support.messages import descriptor_text, proto_file

SCHEMA = '{"type": "record", "name": "R",\n "fields": [{"name": "x", "type": "double"}]}'
TEXT = """\
# schema_file: of a comment
stream: a
format: avro
avro: {schema_file: "r.avsc"}   # beside this file
schema: {x: double}
---
stream: b
format: protobuf
protobuf:
  descriptor_file: sub/r.desc
  message: p.R
schema:
  x: dubble
"""


def test_the_content_of_files_stands_in_the_document_and_lines_stay(tmp_path: Path) -> None:
    descriptors = descriptor_text(proto_file("p", R={"x": "double"}))
    (tmp_path / "r.avsc").write_text(SCHEMA)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "r.desc").write_bytes(base64.b64decode(descriptors))
    text = with_files(TEXT.encode(), tmp_path / "streams.yaml")
    first, second = read_documents(text, "streams.yaml")
    avro = StreamSpec.parse(first).avro
    assert avro is not None and avro.written_by == SCHEMA
    with pytest.raises(InvalidDocument, match=r"streams.yaml:13: schema.x: 'dubble' is not a type"):
        StreamSpec.parse(second)
    protobuf = StreamSpec.from_document({**second.data, "schema": {"x": "double"}}).protobuf
    assert protobuf is not None and protobuf.descriptor == descriptors


def test_a_file_that_is_missing_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument, match=r"s.yaml:4: avro: .*r.avsc can't be read: .*No such file"):
        with_files(TEXT.encode(), tmp_path / "s.yaml")


def test_only_who_reads_for_a_user_opens_files() -> None:
    with pytest.raises(InvalidDocument, match=r"schema_file: is only allowed in files for `strandline apply`"):
        StreamSpec.from_document(
            {"stream": "a", "format": "avro", "schema": {"x": "double"}, "avro": {"schema_file": "/etc/x"}}
        )


def test_a_file_of_protobuf_source_is_told_how_it_becomes_a_descriptor(tmp_path: Path) -> None:
    (tmp_path / "m.proto").write_text('syntax = "proto3";')
    text = b"stream: a\nformat: protobuf\nprotobuf: {schema_file: m.proto}\nschema: {x: double}\n"
    (document,) = read_documents(with_files(text, tmp_path / "s.yaml"), "s.yaml")
    with pytest.raises(InvalidDocument, match=r"write 'descriptor_file: m.desc'.*protoc --include_imports"):
        StreamSpec.parse(document)


@pytest.mark.parametrize(
    "text", [b"stream: [schema_file", b"\xffschema_file: a", b"- schema_file: a", b"schema_file: a"]
)
def test_what_can_not_be_read_is_left_to_its_reader(text: bytes, tmp_path: Path) -> None:
    assert with_files(text, tmp_path / "s.yaml") == text


OUTSIDE = "root:canary-password"


def named_files(tmp_path: Path, target: str) -> dict[str, bytes]:
    """Documents that name this file, one for each field that can."""
    return {
        "file": f"lookup: users\nkey: [name]\nschema: {{name: string}}\nfile: {json.dumps(target)}\n".encode(),
        "avro.schema_file": f"stream: a\nformat: avro\navro:\n  schema_file: {json.dumps(target)}\n".encode(),
        "protobuf.descriptor_file": (
            f"stream: a\nformat: protobuf\nprotobuf:\n  message: M\n  descriptor_file: {json.dumps(target)}\n".encode()
        ),
    }


@pytest.mark.guarantee(
    "G779",
    "A document reads no file outside its folder: not by `..`, an absolute path, or a symbolic link.",
    promise="each-operation-requires-its-right",
)
@pytest.mark.parametrize("way", ["parent", "absolute", "link", "linked folder", "link circle"])
@pytest.mark.parametrize("field", ["file", "avro.schema_file", "protobuf.descriptor_file"])
def test_a_document_reads_no_file_outside_its_folder(tmp_path: Path, way: str, field: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    secret = tmp_path / "credentials.csv"
    secret.write_text(f"name\n{OUTSIDE}\n")
    (folder / "link.csv").symlink_to(secret)
    (folder / "linked").symlink_to(tmp_path, target_is_directory=True)
    (folder / "circle.csv").symlink_to(folder / "circle.csv")
    target = {
        "parent": "../credentials.csv",
        "absolute": str(secret),
        "link": "link.csv",
        "linked folder": "linked/credentials.csv",
        "link circle": "circle.csv",
    }[way]
    with pytest.raises(InvalidDocument) as refused:
        with_files(named_files(tmp_path, target)[field], folder / "document.yaml")
    (problem,) = refused.value.problems
    assert OUTSIDE not in str(problem)
    assert problem.path == field
    assert "is outside the folder of the document" in problem.message


@pytest.mark.guarantee("G779")
def test_a_document_reads_files_in_its_folder_and_below(tmp_path: Path) -> None:
    below = tmp_path / "folder" / "below"
    below.mkdir(parents=True)
    (below / "users.csv").write_text("name\nada\n")
    (tmp_path / "folder" / "link.csv").symlink_to("below/users.csv")
    (tmp_path / "linked").symlink_to("folder", target_is_directory=True)
    for target in ("below/users.csv", "link.csv", str(below / "users.csv")):
        for folder in ("folder", "linked"):
            text = with_files(named_files(tmp_path, target)["file"], tmp_path / folder / "document.yaml")
            assert b"packed: " in text, target
