"""What the check of a pipeline knows of lookups."""
