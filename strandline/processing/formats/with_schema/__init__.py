"""Formats whose records are read by a schema: of the stream, or one that each record names."""
