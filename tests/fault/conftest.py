"""The gateways and brokers that the fault tests break: real processes, shared by the tests of a module; the broker by all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.ingest_ladder import small_disk
from tests.support.faults.gateways import HTTP, KINDS, TOY
from tests.support.faults.kafka_cluster import KafkaCluster
from tests.support.faults.lab import Lab

EACH_KIND = [pytest.param(kind, id=kind.name, marks=[] if kind is HTTP else pytest.mark.long) for kind in (*KINDS, TOY)]
"""Gateways that `make test` breaks: only the HTTP gateway, because the parts behind all gateways are the same.

`make test-all` breaks each, including that of a package.
"""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """The one broker that most tests break."""
    with contextlib.closing(KafkaCluster(tmp_path_factory.mktemp("kafka"))) as cluster:
        cluster.start()
        yield cluster
        assert cluster.errors() == []


@pytest.fixture(scope="module", params=EACH_KIND)
def lab_of_a_kind(
    request: pytest.FixtureRequest, cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    with contextlib.closing(Lab(tmp_path_factory.mktemp("lab"), request.param, cluster=cluster)) as lab:
        yield lab


@pytest.fixture
def each_lab(lab_of_a_kind: Lab) -> Iterator[Lab]:
    """A gateway of each kind over the broker, with the frame-aware proxy between them. No test leaves its rules to the next."""
    yield lab_of_a_kind
    lab_of_a_kind.cluster.heal()


@pytest.fixture(scope="module")
def http_lab(cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with contextlib.closing(Lab(tmp_path_factory.mktemp("lab"), HTTP, cluster=cluster)) as lab:
        yield lab


@pytest.fixture
def lab(http_lab: Lab) -> Iterator[Lab]:
    """Yield a lab with an HTTP gateway, for the parts behind the gateways, which are the same for all."""
    yield http_lab
    http_lab.cluster.heal()


@pytest.fixture(scope="module")
def spooling_lab(cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with contextlib.closing(Lab(tmp_path_factory.mktemp("lab"), HTTP, cluster=cluster, durability="spool")) as lab:
        yield lab


@pytest.fixture
def spool_lab(spooling_lab: Lab) -> Iterator[Lab]:
    """An HTTP gateway that may acknowledge from its spool."""
    yield spooling_lab
    spooling_lab.cluster.heal()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    with contextlib.ExitStack() as stack:
        try:
            mounted = stack.enter_context(small_disk(tmp_path))
        except PermissionError as error:
            pytest.skip(str(error))
        yield mounted
