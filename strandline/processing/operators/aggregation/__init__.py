"""The aggregate functions beyond sums, counts and extremes."""
