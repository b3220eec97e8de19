"""Pipelines built in Python. Users import them from `strandline`."""
