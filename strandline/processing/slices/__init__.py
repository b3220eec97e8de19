"""Division of the log into slices, the watermark of each slice, and the start of a rewind. Starts no Spark."""
