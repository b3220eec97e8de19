"""Elasticsearch: monthly indices behind an alias."""
