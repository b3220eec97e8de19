"""The inputs of each step, and the branches that they form."""
