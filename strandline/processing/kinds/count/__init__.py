"""Windows that count records."""
