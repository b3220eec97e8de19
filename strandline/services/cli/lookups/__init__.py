"""Lookups on the command line: commands, and files of rows."""
