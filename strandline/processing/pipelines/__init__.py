"""The pipeline document: its model, its check against the stream it reads, its expressions, and what an upgrade changes."""
