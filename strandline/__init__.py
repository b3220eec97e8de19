"""Strandline: streaming ETL for sensor feeds that can't be asked to send again.

Every result is a pure function of the log. The packages, in the order in which they may import each other:
`core` <- `ledger` <- `log` <- `ingest`, `results` <- `processing` <- `services` <- `example` <- `services.cli`.
"""

__version__ = "0.1.0"
