"""The hash join of records with the rows of a lookup."""
