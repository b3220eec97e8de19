"""Child processes: how they are started, found, recorded and ended."""
