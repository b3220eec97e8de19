"""Notices: find problems, and notify people. One module for each kind of condition and each kind of channel."""
