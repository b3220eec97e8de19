"""Supervision: which jobs this control service leads, and the processes that work on them."""
