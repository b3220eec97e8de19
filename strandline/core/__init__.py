"""What every station of the stream shares: errors, durations, settings, the stream document. Opens no socket."""

from strandline.core.extras import report_missing_extras

report_missing_extras()
