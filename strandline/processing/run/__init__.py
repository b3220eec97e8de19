"""One run of a job: its start by rewind or snapshot, its watchdog, its end."""
