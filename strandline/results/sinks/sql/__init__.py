"""Tables of a SQL database."""
