"""One file per revision. A released revision never changes."""
