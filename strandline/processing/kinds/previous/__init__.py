"""Windows of a record and the record before it."""
