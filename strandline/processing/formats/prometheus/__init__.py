"""Requests of Prometheus' remote write."""
