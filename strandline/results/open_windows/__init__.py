"""The index that shows windows while they are open: what they hold so far, outside of exactly-once."""
