"""The `pipeline:` document and its parts."""
