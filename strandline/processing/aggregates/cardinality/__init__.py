"""`approx_count_distinct`."""
