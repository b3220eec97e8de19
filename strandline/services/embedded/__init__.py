"""The embedded stack: real servers as child processes on loopback, without containers."""
