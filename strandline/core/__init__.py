"""What every station of the stream shares: errors, durations, settings, the stream document. Opens no socket."""
