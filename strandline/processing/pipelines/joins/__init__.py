"""Joins in the document of a pipeline."""
