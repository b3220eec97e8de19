"""How the log is cut into slices, which watermark is in force for each, and where a rewind starts. Starts no Spark."""
