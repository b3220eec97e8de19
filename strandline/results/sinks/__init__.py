"""Stores of results in addition to the index and streams, and the contract of every sink."""
