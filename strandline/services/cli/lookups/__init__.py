"""Lookups on the command line: their verbs, and the files of their rows."""
