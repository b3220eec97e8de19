"""Kinds of channels, one module each. `table.py` lists them."""
