"""Results as documents: their ids, mappings, and indices, and the writer that creates each document once."""
