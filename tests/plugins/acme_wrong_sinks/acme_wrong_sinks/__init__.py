"""Sinks in memory: a correct one, and one for each mistake that an author of a sink could make."""
