"""Lookups in the ledger: their versions, and which of them replays still need."""
