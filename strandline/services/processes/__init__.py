"""Child processes: start, search, records, and end."""
