"""The queries with which the audit computes stages again: their contract, their tables, and what all window queries share."""
