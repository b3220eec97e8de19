"""Parsers of fields whose values have a form of their own."""
