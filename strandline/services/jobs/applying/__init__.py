"""Changes by applying documents, to streams, lookups, and jobs, and refusals of changes."""
