"""What is refused before anything is applied: here, two streams behind one door."""

from __future__ import annotations

import pytest

from strandline.core.errors import InvalidDocument
from strandline.core.stream import StreamSpec
from strandline.services.rest.apply_documents import check_documents

STREAM = "stream: {name}\nschema: {{n: long}}\n{entrance}\n"
ENTRANCES = ["udp: {port: 8082}", "tcp: {port: 8083}", 'mqtt: {topics: ["farm/+"]}']


def registered(entrance: str, name: str = "old") -> dict[str, dict]:
    batch = check_documents(STREAM.format(name=name, entrance=entrance), "a.yaml", {})
    return {name: batch.streams[0].as_document()}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_an_entrance_of_another_stream_is_refused_with_its_line(entrance):
    for text, known in (
        (STREAM.format(name="new", entrance=entrance), registered(entrance)),
        ("---\n".join(STREAM.format(name=name, entrance=entrance) for name in ("old", "new")), {}),
    ):
        with pytest.raises(InvalidDocument) as refused:
            check_documents(text, "b.yaml", known)
        (problem,) = refused.value.problems
        assert "leads into stream 'old' already" in problem.message
        assert problem.line is not None
        assert text.splitlines()[problem.line - 1] == entrance


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_a_stream_may_keep_its_own_and_take_what_another_gives_up(entrance):
    known = registered(entrance)
    assert check_documents(STREAM.format(name="old", entrance=entrance), "b.yaml", known).streams
    text = STREAM.format(name="old", entrance="") + "---\n" + STREAM.format(name="new", entrance=entrance)
    assert len(check_documents(text, "b.yaml", known).streams) == 2


def test_a_port_of_udp_and_one_of_tcp_may_be_the_same_number():
    text = STREAM.format(name="new", entrance="tcp: {port: 8082}")
    assert check_documents(text, "b.yaml", registered("udp: {port: 8082}")).streams


def test_what_cannot_be_read_of_a_newer_version_is_left_to_it():
    document = StreamSpec.from_document({"stream": "old", "schema": {"n": "long"}}).as_document()
    assert check_documents(
        STREAM.format(name="new", entrance=ENTRANCES[0]), "b.yaml", {"old": {**document, "novel": 1}}
    ).streams
