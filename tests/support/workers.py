"""Distribution of the tests to workers: the order of modules, and the modules that stay together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Set
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

LONGEST = (
    "test_failover",
    "test_rejected_records",
    "test_cluster",
    "test_same_slices",
    "test_snapshots",
    "test_upgrade",
    "test_job_faults",
    "test_ingest_faults",
    "test_embedded_stack",
    "test_http_gateway",
    "test_mqtt_server",
    "test_supervisor",
    "test_mqtt_bridge",
    "test_secured_servers",
    "test_log_reading",
    "test_kafka_proxy",
    "test_simulation",
    "test_command_line",
    "test_backfill_jobs",
    "test_window_operator",
    "test_job_checker",
)
"""The modules that take longest. They begin first, so that no worker ends with one of them while others have nothing left to do.
A module that is not named here costs some time and nothing else."""
_KINDS_WITH_SERVERS = {"contract", "integration", "migration", "fault"}
_KINDS_BY_NEED = (_KINDS_WITH_SERVERS, {"unit", "property", "simulation"})
_TESTS = Path(__file__).parents[1]
_FIRST_WORKER = "gw0"
_NICENESS = 5
_COSTLY = re.compile(
    r"[\s(](?:elasticsearch|platform|audit_lab|spark|class_archive)[:,)]|getfixturevalue\(\"elasticsearch\"\)"
)
"""Matches a test with one of these fixtures, which use Elasticsearch and Spark."""


@cache
def is_costly(module: Path) -> bool:
    """Whether tests of the module need Elasticsearch or Spark. All these modules are one worker's: another node and session take
    longer to start than they save, and much memory. A wrong answer costs time and nothing else."""
    return _kind(module) in _KINDS_WITH_SERVERS and _COSTLY.search(module.read_text(encoding="utf-8")) is not None


def pytest_configure(config: pytest.Config) -> None:
    """The costly modules are run one after the other by one worker, and would end last: the other workers, and what they start,
    yield to it. And a test that fails is named at once."""
    worker = getattr(config, "workerinput", {}).get("workerid", _FIRST_WORKER)
    if worker != _FIRST_WORKER and config.getvalue("markexpr") == "not long":
        os.nice(_NICENESS)
    if config.getvalue("dist") != "no":  # it is in workers
        config.pluginmanager.register(_NamesOfFailures(config))


class _NamesOfFailures:
    """Names a test that failed at once. Workers' tests are dots until the end, which may be two hours away."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._plugins.get_plugin("terminalreporter").write_line(f"\nFAILED {report.nodeid} ({report.when})")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the costly modules first, and the longest first among the others, unless a random order is requested.

    The tests of each module that is marked `in_order` get the order of the file, in their own slots.
    """
    if not config.pluginmanager.hasplugin("randomly"):
        ranks = {name: rank for rank, name in enumerate(LONGEST)}
        items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
        places_of = {module: place for kind in _KINDS_BY_NEED for module, place in _places(items, kind).items()}
        items.sort(key=lambda item: (not is_costly(item.path), places_of[item.path]))
    places: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        if item.get_closest_marker("in_order"):
            places.setdefault(str(item.path), []).append(place)
    for of_module in places.values():
        in_order = sorted((items[place] for place in of_module), key=lambda item: item.location[1] or 0)
        for place, item in zip(of_module, in_order, strict=True):
            items[place] = item


def _places(items: Iterable[pytest.Item], kinds: Set[str]) -> dict[Path, float]:
    """Return the position of each module of these kinds among their items, from 0 to 1: modules that wait for servers
    are spread evenly among those that compute."""
    modules = [item.path for item in items if _kind(item.path) in kinds]
    first: dict[Path, float] = {}
    for place, module in enumerate(modules):
        first.setdefault(module, place / len(modules))
    return first


def _kind(module: Path) -> str:
    """Return the kind of the tests of a module: its first folder in `tests`. The folders below mirror those of the code."""
    return module.relative_to(_TESTS).parts[0]


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist says nothing of its types
    """A module is assigned to one worker, and so are all costly modules together, and the fault tests, which share a
    broker.

    With the long tests these are most of the work: then each test is assigned to a free worker.
    """

    def schedule(self) -> None:
        # The first worker gets the first tests.
        self.assigned_work = dict(sorted(self.assigned_work.items(), key=lambda one: str(one[0].gateway.id)))
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        module: str = super()._split_scope(nodeid)
        if self.config.getvalue("markexpr") != "not long":
            return module
        path = self.config.rootpath / module
        return "costly" if is_costly(path) else "fault" if _kind(path) == "fault" else module


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Scheduling | None:
    return _Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None
