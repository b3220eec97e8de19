"""Fixtures for every kind of test. The servers behind them start once for a whole run, on the first test that asks."""

pytest_plugins = [
    "tests.support.servers",
    "tests.support.gateways",
    "tests.support.postgresql",
    "tests.support.platform",
    "tests.support.audit_lab",
]
