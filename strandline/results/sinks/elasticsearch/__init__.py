"""Elasticsearch: monthly indices with an alias."""
