"""Checks of requests before they reach the REST API: host names, tokens, limits of time and size."""
