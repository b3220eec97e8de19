"""The ledger: the SQL database with registrations, runs, slices, checkpoints, and events.

All SQL is in this package.
"""
