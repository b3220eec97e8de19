"""The ledger: the SQL database that holds registrations, runs, slices, checkpoints and events. All SQL is here."""
