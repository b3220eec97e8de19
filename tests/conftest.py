"""Fixtures for every kind of test. The servers behind them start once for a whole run, on the first test that asks."""

import functools
import logging
import os

import pytest
import structlog
import typer.main
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.support.ledgers",
    "tests.support.servers",
    "tests.support.gateways",
    "tests.support.postgresql",
    "tests.support.secured",
    "tests.support.platform",
    "tests.support.spark",
    "tests.support.audit_lab",
]

# Every JVM of a run uses the quick compiler alone: most live for less than a minute, and a start takes a third less CPU time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

# A server under test runs in threads of this process. By default its log lines would go to stdout, between what a command
# under test prints there. This way they go to pytest's own record of logs, which it shows beside a failure.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        structlog.processors.KeyValueRenderer(key_order=["event"]),
    ],
    logger_factory=structlog.stdlib.LoggerFactory(),
)
logging.getLogger("strandline").setLevel(logging.INFO)

# A command line under test runs in this process, once for each verb, and to build all commands takes longer than most verbs.
typer.main.get_command = functools.cache(typer.main.get_command)

# How long an example takes says nothing on a busy machine.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# `make test` tries fewer examples of what doesn't say how many; each run tries others. `make test-all` asks for "untimed".
settings.register_profile("quick", settings.get_profile("untimed"), max_examples=25)
settings.load_profile("quick")


LONGEST = (
    "test_backfill",
    "test_failover",
    "test_rejected_records",
    "test_cluster",
    "test_same_slices",
    "test_snapshots",
    "test_guarantees",
    "test_upgrade",
    "test_job_faults",
    "test_embedded_stack",
    "test_ingest_faults",
    "test_audit",
    "test_mqtt_server",
    "test_spooling",
    "test_expression_types",
)
"""The modules that take over half a minute. They begin first, so that no worker ends with one of them while others have
nothing left to do. A module that is not named here costs some time and nothing else."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest modules first, unless a random order is asked for; and the tests of each module that is marked
    `in_order` back into the order of the file, in the places that they have."""
    if not config.pluginmanager.hasplugin("randomly"):
        ranks = {name: rank for rank, name in enumerate(LONGEST)}
        items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
    places: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        if item.get_closest_marker("in_order"):
            places.setdefault(str(item.path), []).append(place)
    for of_module in places.values():
        in_order = sorted((items[place] for place in of_module), key=lambda item: item.location[1] or 0)
        for place, item in zip(of_module, in_order, strict=True):
            items[place] = item
