"""The proxy before the index does what a fault of the ladder says of it, and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from tests.support.chaos.index_proxy import REFUSALS, IndexProxy
from tests.support.refusing_index import RefusingIndex


@pytest.fixture
def index() -> Iterator[RefusingIndex]:
    with RefusingIndex() as index:
        yield index


@pytest.fixture
def proxy(index: RefusingIndex) -> Iterator[IndexProxy]:
    with closing(IndexProxy(int(index.url.rsplit(":", 1)[1]))) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: IndexProxy) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{proxy.port}", trust_env=False) as client:
        yield client


def send(client: httpx.Client, ids: list[str]) -> list[dict]:
    lines = [json.dumps(line) for one in ids for line in ({"create": {"_index": "a.write", "_id": one}}, {"v": one})]
    answer = client.post("/_bulk?require_alias=true", content="\n".join([*lines, ""]).encode())
    assert answer.status_code == 200 and answer.headers["X-Elastic-Product"] == "Elasticsearch"
    return [item["create"] for item in answer.json()["items"]]


def test_what_is_refused_is_not_stored_and_the_rest_is(index, proxy, client):
    ids = [str(n) for n in range(40)]
    proxy.refuse_items(0.5, random.Random(1))
    items = send(client, ids)
    assert [item["_id"] for item in items] == ids
    refused = {item["_id"]: (item["status"], item["error"]["type"]) for item in items if item["status"] != 201}
    assert set(refused.values()) == set(REFUSALS) and proxy.items_refused == len(refused)
    assert {identity for _, identity in index.documents} == {*ids} - refused.keys() != set()
    proxy.refuse_items(0.0, random.Random(1))
    again = send(client, ids)
    assert [item["status"] for item in again] == [201 if one in refused else 409 for one in ids]


def test_a_request_of_which_all_is_refused_does_not_reach_the_index(index, proxy, client):
    proxy.refuse_items(1.0, random.Random(1))
    assert {item["status"] for item in send(client, ["1", "2"])} <= {429, 503}
    assert index.sent == []


def test_a_lost_answer_is_to_a_request_that_was_carried_out(index, proxy, client):
    proxy.lose_answers(1)
    assert client.get("/a").status_code == 200  # no bulk request
    with pytest.raises(httpx.RemoteProtocolError):
        send(client, ["1"])
    assert proxy.lost == 1 and ("a", "1") in index.documents
    assert [item["status"] for item in send(client, ["1"])] == [409]


def test_while_it_is_cut_nothing_passes(index, proxy, client):
    send(client, ["1"])
    proxy.cut()
    for _ in range(2):  # the connection that was there, then a new one
        with pytest.raises(httpx.TransportError):
            send(client, ["2"])
    assert len(index.sent) == 1 and proxy.refused >= 2
    proxy.heal()
    assert [item["status"] for item in send(client, ["2"])] == [201]
