"""Duplicate records: how they are found, and how they cross the exchange."""
