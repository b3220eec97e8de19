"""Bare values: a number or a text."""
