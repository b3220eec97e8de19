"""Sparkplug B: messages of edge nodes and their devices become one row per metric, with the aliases that births declare."""
