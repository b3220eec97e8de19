"""Which step takes from which, and the branches that this makes."""
