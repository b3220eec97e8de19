"""The TCP gateway: one record per line."""
