"""Shapes of records with several rows, except arrays within an object."""
