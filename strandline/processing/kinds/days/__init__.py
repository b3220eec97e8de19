"""Windows of days of a time zone."""
