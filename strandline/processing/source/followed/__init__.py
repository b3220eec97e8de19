"""The sources of lookups that are followed: the latest records of a stream by key, and queries of databases."""
