"""Table of conditions: keyword in the document -> module. Another condition is a module and a line here.

A module has:

* `Fields`: a `DocumentModel` with one field, the keyword, whose value has the options of the condition;
* `look(options, view)`: returns a `Sight`. It can raise StrandlineError if the condition can't be checked;
* `AFTER_END`, if something remains to do after a problem is over: the next step, with the placeholder `{job}`;
* `BY_EVENTS = True` if the condition is based on events, which must be handled exactly once.
"""

from __future__ import annotations

import importlib
from types import ModuleType

_FOLDER = "strandline.notices.conditions"
CONDITIONS = {
    "job_failed": "job_failed",
    "stopped_by_record": "stopped_by_record",
    "restarts": "restarts",
    "no_checkpoint": "no_checkpoint",
    "lag": "lag",
    "watermark_stuck": "watermark_stuck",
    "dead_letters": "dead_letters",
    "audit_differences": "audit_differences",
    "work_ended": "work_ended",
    "gateway_away": "gateway_away",
    "disk_full": "disk_full",
    "retention_near": "retention_near",
    "spool_fills": "spool_fills",
    "expiry": "expiry",
    "divergence": "divergence",
    "results": "results",
}
"""Keyword -> module."""


def condition_of(keyword: str) -> ModuleType:
    """Return the module of a condition."""
    return importlib.import_module(f"{_FOLDER}.{CONDITIONS[keyword]}")
