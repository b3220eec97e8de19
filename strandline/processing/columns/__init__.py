"""Arrow columns: the type for each field type, and functions on the values that every step shares."""
