"""The optional index of a job's dead letters."""
