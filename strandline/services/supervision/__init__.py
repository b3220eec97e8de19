"""Supervision: the jobs that this control service leads, and the processes that work on them."""
