"""Sparkplug B: messages of edge nodes and their devices to one row a metric, with the aliases that births declare."""
