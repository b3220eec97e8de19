"""Binary records with a declared layout."""
