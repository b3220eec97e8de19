"""Files as they come from outside."""
