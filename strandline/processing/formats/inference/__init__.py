"""A stream's document, proposed from a sample of its records."""
