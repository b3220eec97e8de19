"""Client of a platform for programs: `strandline.Client`."""
