"""Fixtures for every kind of test. The servers behind them start once for a whole run, on the first test that asks."""

import atexit
import functools
import gc
import logging
import os

import structlog
import typer.main
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.support.memory_turns",
    "tests.support.workers",
    "tests.support.hang_limits",
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
# under test prints there. This way they go to pytest's own record of logs, which it shows with a failure.
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
settings.register_profile("quick", settings.get_profile("untimed"), max_examples=8)
settings.load_profile("quick")

# What is imported and collected lives as long as the run: the garbage collector would walk through it again and again. Once it
# must in the end, when pytest has done so: else libraries in C tell of leaks.
gc.disable()
atexit.register(gc.unfreeze)


# Objects that tests create before the garbage collector looks at the youngest. Python's own number is 700, which costs a test run
# 4 % more CPU time.
_COLLECTION_THRESHOLD = 20_000


def pytest_collection_finish() -> None:
    gc.set_threshold(_COLLECTION_THRESHOLD, 20, 20)
    gc.enable()
    gc.freeze()
