"""Tumbling and sliding windows."""
