"""Simulated histories of notices: control services, a ledger, receivers, kills."""
