"""How results and dead letters leave: documents, result streams, dead letters, and the commit of a slice."""
