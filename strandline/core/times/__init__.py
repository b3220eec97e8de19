"""Durations, and the rules of time zones."""
