"""Cumulative windows."""
