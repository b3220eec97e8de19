"""The TCP gateway: one record a line."""
