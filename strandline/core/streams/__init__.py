"""The `stream:` document and its parts."""
