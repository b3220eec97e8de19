"""The facts about lookups that the check of a pipeline needs."""
