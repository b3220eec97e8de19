"""Memory of a running stack: `python -m benchmarks.stack_memory DATA_DIR`, after `strandline up --data-dir DATA_DIR --detach`.

Prints the proportional set size of each process of the stack with its descendants, and the sum, in MB.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def parents() -> dict[int, int]:
    """Return process -> its parent, for all processes."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(path.parent.name)] = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            continue  # the process has ended
    return found


def proportional_set_size_kb(pid: int) -> int:
    """Return the memory of the process, with its share of the pages that it has in common with others."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def main() -> int:
    if len(sys.argv) != 2:
        print("pass the data directory of a running stack", file=sys.stderr)
        return 2
    named = {int(pid): name for name, pid in json.loads((Path(sys.argv[1]) / "pids.json").read_text()).items()}
    above = parents()
    sizes_kb = dict.fromkeys(named.values(), 0)
    for pid in above:
        owner: int | None = pid
        while owner is not None and owner not in named:
            owner = above.get(owner)
        if owner is not None:
            sizes_kb[named[owner]] += proportional_set_size_kb(pid)
    for name, size_kb in sorted(sizes_kb.items(), key=lambda one: -one[1]):
        print(f"{name:24} {size_kb / 1024:8,.0f} MB")
    print(f"{'all':24} {sum(sizes_kb.values()) / 1024:8,.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
