"""What applying documents would change: of streams, of lookups and of jobs, and what of it is refused."""
