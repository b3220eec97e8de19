"""Kinds of conditions, one module each. `table.py` lists them."""
