"""Following the sources of lookups, beside the jobs."""
