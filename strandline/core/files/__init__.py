"""Readers of external files."""
