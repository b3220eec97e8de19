"""JSON objects."""
