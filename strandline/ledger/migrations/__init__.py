"""Alembic: how the ledger's schema came to be, one file a revision. NOTES.md says why, and how to go back."""
