"""The embedded stack: real servers as child processes on loopback, with no container runtime."""
