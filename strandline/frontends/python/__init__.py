"""Pipelines built in Python, and a client of a platform. What users import stands in `strandline` itself."""
