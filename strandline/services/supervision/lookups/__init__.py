"""Following of the sources of lookups, in parallel with the jobs."""
