"""Lines of values with a delimiter between them."""
