"""Runs a module as on a host of another name: `python -m tests.support.other_host NAME MODULE`."""

from __future__ import annotations

import runpy
import socket
import sys


def main() -> None:
    _, name, module = sys.argv
    socket.gethostname = lambda: name
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
