"""The audit: results recomputed from the log and compared with what the index holds."""
