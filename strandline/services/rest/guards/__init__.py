"""What stands before the REST API: host names, tokens, bounds on time and size."""
