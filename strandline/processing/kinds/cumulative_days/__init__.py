"""Cumulative windows of days of a time zone."""
