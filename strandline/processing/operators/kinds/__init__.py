"""Operators of windows of other kinds than those that the clock bounds."""
