"""Tables by whose key records are enriched: their documents, and how their rows travel."""
