"""Formats whose records need a schema: that of the stream, or the one that each record names."""
