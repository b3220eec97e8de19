"""Fixtures for every kind of test. The servers behind them start once for a whole run, on the first test that asks."""

import os

pytest_plugins = [
    "tests.support.ledgers",
    "tests.support.servers",
    "tests.support.gateways",
    "tests.support.postgresql",
    "tests.support.platform",
    "tests.support.spark",
    "tests.support.audit_lab",
]

# Every JVM of a run uses the quick compiler alone: most live for less than a minute, and a start takes a third less CPU time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
