"""A gateway for lines, defined outside of Strandline."""
