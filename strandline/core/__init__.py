"""Errors, durations, settings, and document models that all packages share. Opens no socket."""

from strandline.core.extras import report_missing_extras

report_missing_extras()
