"""Samples that users send to the control service: the proposed documents, the decoded records, and the first results."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from strandline.core.errors import NotFound
from strandline.ledger.ledger import Ledger
from strandline.services.jobs.apply_documents import check_documents
from strandline.services.jobs.samples import pipeline_of, preview_sample, propose_documents
from tests.support.control import Api
from tests.support.products.table import PRODUCTS

READINGS = b"".join(
    json.dumps(
        {"device": f"d{at % 3}", "note": f"text {at}", "ts": 1_764_000_000 + 20 * at, "temp": 20 + at / 4, "n": at}
    ).encode()
    + b"\n"
    for at in range(60)
)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield Api(ledger)
    ledger.close()


def propose(api: Api, sample: bytes, name: str = "tanks") -> Any:
    return api.ask("POST", f"/v1/samples/proposal?name={name}", content=sample)


def preview(api: Api, documents: str, sample: bytes, query: str = "") -> Any:
    body = {"documents": documents, "sample": b64encode(sample).decode()}
    return api.ask("POST", f"/v1/samples/preview{query}", json=body)


def test_a_sample_becomes_a_stream_with_a_key_and_a_pipeline_of_means_by_sender(api: Api) -> None:
    answer = propose(api, READINGS)
    assert answer.status_code == 200, answer.text
    stream, pipeline = yaml.safe_load_all(answer.json()["documents"])
    assert (stream["stream"], stream["key"]) == ("tanks", "device")
    assert pipeline["event_time"] == {"field": "ts", "delay": "10s"}
    (step,) = pipeline["steps"]
    assert step["window"] == {
        "name": "five_minutes",
        "tumbling": "5m",
        "by": ["device"],
        "aggregate": {"records": "count(*)", "temp": "avg(temp)", "n": "avg(n)"},
    }
    assert (answer.json()["records"], answer.json()["accepted"]) == (60, 60)


def test_a_clock_that_was_never_set_changes_neither_the_windows_nor_the_delay(api: Api) -> None:
    _, wanted = yaml.safe_load_all(propose(api, READINGS).json()["documents"])
    lines = READINGS.splitlines()
    lines[30] = lines[30].replace(b'"ts": 1764000600', b'"ts": 3.41')
    answer = propose(api, b"\n".join(lines)).json()
    stream, pipeline = yaml.safe_load_all(answer["documents"])
    assert pipeline == wanted
    assert "retention" not in stream
    assert "times of ts that are not of 2000 to 2099: 1 of 60; they are left out of the delay" in answer["notes"]


@pytest.mark.parametrize(
    ("records", "sender"),
    [
        ([{"a": "x", "b": "1"}, {"a": "x", "b": "2"}] * 4, "b"),
        ([{"a": "x", "note": f"{at}"} for at in range(8)], "a"),
        ([{"note": f"{at}"} for at in range(8)], None),
        ([{"a": "x"}, {"a": "y"}], "a"),
        ([{"v": 1.5}, {"v": 2.5}], None),
    ],
)
def test_the_sender_is_the_field_with_the_most_values_that_are_repeated(
    records: list[dict[str, Any]], sender: str | None
) -> None:
    found = propose_documents("s", "\n".join(map(json.dumps, records)).encode())
    stream, pipeline = yaml.safe_load_all(found.documents)
    assert stream.get("key") == sender
    assert pipeline["steps"][0]["window"].get("by") == (None if sender is None else [sender])


@pytest.mark.parametrize(
    ("seconds", "size"), [(1, "1m"), (15, "1m"), (60, "5m"), (600, "1h"), (3_600, "1d"), (86_400, "1d")]
)
def test_the_windows_divide_the_sample(seconds: int, size: str) -> None:
    lines = [json.dumps({"ts": 1_764_000_000 + seconds * at, "v": 1.5}) for at in range(60)]
    _, pipeline = yaml.safe_load_all(propose_documents("s", "\n".join(lines).encode()).documents)
    assert pipeline["steps"][0]["window"]["tumbling"] == size


@pytest.mark.guarantee(
    "G1000",
    "The documents that the console proposes for a sample are valid, and their pipeline has results for the sample. This holds "
    "for each product in docs/devices.md.",
    promise="all-forms-of-a-pipeline-agree",
)
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_documents_for_a_product_are_valid_and_have_results(name: str) -> None:
    product = PRODUCTS[name]
    proposed = propose_documents("devices", product.sample)
    batch = check_documents(proposed.documents, "proposal", {})
    found = preview_sample(batch, pipeline_of(batch, None, "proposal"), product.sample)
    assert (found.records, found.accepted, found.rejected) == (product.rows, product.rows, {})
    assert len(found.rows) == min(20, product.rows)
    assert found.results and not found.dead_letters


def test_a_preview_shows_the_decoded_records_and_the_first_results(api: Api) -> None:
    documents = propose(api, READINGS).json()["documents"]
    answer = preview(api, documents, READINGS)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["fields"] == {"device": "string", "note": "string", "ts": "timestamp", "temp": "double", "n": "long"}
    assert len(found["rows"]) == 20
    first = {"device": "d0", "note": "text 0", "ts": "2025-11-24T16:00:00Z", "temp": 20.0, "n": 0}
    assert found["rows"][0] == first
    assert (found["records"], found["accepted"], found["rejected"]) == (60, 60, {})
    assert found["pipeline"] == "tanks-five-minutes"
    assert found["result_counts"] == {"five_minutes": 12}
    (result,) = (
        one for one in found["results"] if one["device"] == "d0" and one["@timestamp"].endswith("16:05:00.000Z")
    )
    assert (result["records"], result["temp"]) == (5, 21.5)


def test_a_preview_uses_the_edited_documents_and_shows_why_records_are_rejected(api: Api) -> None:
    stream, pipeline = propose(api, READINGS).json()["documents"].split("---\n")
    edited = stream.replace("temp: double", "temp: {type: double, max: 30}") + "---\n" + pipeline
    found = preview(api, edited, READINGS).json()
    assert found["accepted"] == 41
    assert found["rejected"] == {"schema": 19}
    assert found["reasons"] and "temp" in found["reasons"][0]
    assert len(found["dead_letters"]) == 19
    without = preview(api, stream, READINGS).json()
    assert (without["pipeline"], without["results"], len(without["rows"])) == (None, [], 20)


def test_a_preview_accepts_a_registered_stream_and_a_chosen_pipeline(api: Api) -> None:
    stream, pipeline = propose(api, READINGS).json()["documents"].split("---\n")
    assert api.apply(stream).status_code == 200
    second = pipeline.replace("tanks-five-minutes", "other")
    assert preview(api, pipeline, READINGS).json()["pipeline"] == "tanks-five-minutes"
    several = preview(api, f"{pipeline}---\n{second}", READINGS)
    assert (several.status_code, several.json()["code"]) == (422, "invalid_document")
    assert preview(api, f"{pipeline}---\n{second}", READINGS, "?pipeline=other").json()["pipeline"] == "other"


def test_a_sample_and_its_documents_that_cant_be_used_are_refused(api: Api) -> None:
    for answer, status, code in (
        (propose(api, b""), 422, "no_sample"),
        (propose(api, b"\x00\x01\xff"), 422, "no_sample"),
        (propose(api, READINGS, "No Name"), 422, "invalid_document"),
        (propose(api, b"x" * 1_000_001), 413, "too_large"),
        (preview(api, "stream: s\nschema: {a: nothing}\n", READINGS), 422, "invalid_document"),
        (preview(api, "lookup: l\nkey: a\nschema: {a: string}\nrows: [{a: x}]\n", READINGS), 422, "invalid_document"),
        (preview(api, "stream: s\nschema: {a: string}\n", b""), 422, "invalid_request"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_a_sample_registers_and_writes_nothing(api: Api) -> None:
    documents = propose(api, READINGS).json()["documents"]
    assert preview(api, documents, READINGS).status_code == 200
    assert api.ledger.streams() == []
    with pytest.raises(NotFound):
        api.ledger.job("tanks-five-minutes")
