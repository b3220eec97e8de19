"""`percentile`, `median`, and `approx_percentile`."""
