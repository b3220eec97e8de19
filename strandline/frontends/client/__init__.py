"""A client of a platform for programs: `strandline.Client`."""
