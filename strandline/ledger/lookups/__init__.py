"""Lookups in the ledger: their versions, and the versions that replays still need."""
