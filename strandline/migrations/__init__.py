"""Alembic's migrations of the ledger's schema: one file per revision. NOTES.md has the reason for each, and how to revert it."""
