"""An examination of the doctor: `python -m strandline.services.jobs.examination_process`.

It checks the servers of the settings and this machine, and writes the findings to stdout as a JSON list.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from functools import partial

from strandline.core.settings import Settings
from strandline.services.doctor.examination import DEADLINE_S, server_checks
from strandline.services.doctor.finding import Check, examine
from strandline.services.doctor.machine import check_machine
from strandline.services.embedded.artifacts import find_java


def main() -> None:
    """Examine, at most for DEADLINE_S, and write the findings. Raises InvalidSettings."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # nothing else may write to stdout
    settings = Settings.read()
    checks: dict[str, Check] = {
        **server_checks(settings, None),
        "machine": partial(check_machine, settings, find_java),
    }
    found = examine(checks, DEADLINE_S, settings)
    with output:
        json.dump([asdict(one) for one in found], output)


if __name__ == "__main__":
    main()
