"""Backfills: windows of the past computed again, as a new generation of results."""
