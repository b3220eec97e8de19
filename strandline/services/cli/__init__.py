"""The command line: `strandline`."""
