"""An audit that computes nothing: `python -m tests.support.fake_audit FILE JOB AFTER UP_TO`.

It reports its progress, waits until FILE exists, and prints its content: the line of a report or an error. If the file
is empty, it ends without output, and leaves a child process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import wait_until


def main(path: str, *_: str) -> None:
    subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
    print("what Java has to say\n250000\n[1]", flush=True)
    print(json.dumps({"progress": {"step": "reading the log", "done": 3, "total": 8}}), flush=True)
    wait_until(Path(path).exists, what=f"at {path}", timeout_s=600)
    said = Path(path).read_text(encoding="utf-8")
    print(said, flush=True)
    if '"outcome": "differences"' in said:
        sys.exit(3)  # as the real one


if __name__ == "__main__":
    main(*sys.argv[1:])
