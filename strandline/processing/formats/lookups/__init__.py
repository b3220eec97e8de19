"""Lookups from their documents to columns."""
