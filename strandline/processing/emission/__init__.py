"""Output of results and dead letters: documents, result streams, dead letters, and the commit of a slice."""
