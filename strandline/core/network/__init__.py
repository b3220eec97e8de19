"""Limits of network clients."""
