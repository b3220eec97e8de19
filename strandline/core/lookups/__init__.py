"""Lookups: tables that enrich records by a key. Their documents, and the transport of their rows."""
