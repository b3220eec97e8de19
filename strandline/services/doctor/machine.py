"""Check of this machine: Java, Python, disk space, open files, ports."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from strandline.core.errors import StrandlineError
from strandline.core.settings import Settings
from strandline.ingest.append.attempts import open_questions
from strandline.ingest.append.writer_identity import writer_directories
from strandline.services.doctor.finding import Finding, ok, warning, wrong

SUBJECT = "machine"
PYTHON_MIN = (3, 11)
OPEN_FILES_MIN = 4_096
"""Minimum of open files. Fewer are enough for a trial. Each connection of a sender and each partition of a job needs one."""
ROOM_BYTES_WRONG, ROOM_BYTES_WARNING = 512 * 2**20, 5 * 2**30


def check_machine(settings: Settings, find_java: Callable[[], Path]) -> Iterator[Finding]:
    """Yield the findings about everything except ports."""
    yield from of_python(sys.version_info[:2])
    try:
        yield ok(SUBJECT, f"Java is {find_java()}")
    except StrandlineError as error:
        message, _, remedy = str(error).partition("; ")
        yield wrong(SUBJECT, message, remedy)
    scratch = settings.scratch_dir or settings.data_dir
    for what, directory in {"data": settings.data_dir, "scratch": scratch}.items():
        yield from of_room(what, directory, lambda path: shutil.disk_usage(path).free)
    yield from of_spools(settings.data_dir)
    yield from of_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def of_spools(data_dir: Path) -> Iterator[Finding]:
    """Yield a warning for each attempt in the spools of this machine's gateways whose outcome the log no longer shows."""
    for writer_id, one in open_questions(writer_directories(data_dir)):
        yield warning(
            SUBJECT,
            f"the spool of gateway {writer_id} has {one.records} records of stream {one.topic}, and the log no longer shows "
            "whether they have arrived",
            f"decide with strandline spool resolve {writer_id}/{one.number} resend, or drop",
        )


def of_python(version: tuple[int, ...]) -> Iterator[Finding]:
    if version < PYTHON_MIN:
        remedy = f"use Python {'.'.join(map(str, PYTHON_MIN))} or newer"
        yield wrong(SUBJECT, f"Python is {'.'.join(map(str, version))}, too old", remedy)
    else:
        yield ok(SUBJECT, f"Python is {platform.python_version()}")


def of_room(what: str, directory: Path, free_bytes: Callable[[Path], int]) -> Iterator[Finding]:
    """Check that the directory, or its nearest existing parent, can be written and has space."""
    absolute = directory.absolute()
    there = next(one for one in (absolute, *absolute.parents) if one.exists())
    if not os.access(there, os.W_OK) or not there.is_dir():
        remedy = "let this user write there, or choose another (STRANDLINE_DATA_DIR, STRANDLINE_SCRATCH_DIR)"
        yield wrong(SUBJECT, f"the {what} directory {directory} can't be written", remedy)
        return
    free = free_bytes(there)
    message = f"the {what} directory {directory} has {free / 2**30:.1f} GB free"
    remedy = "free some space or choose another disk"
    if free < ROOM_BYTES_WRONG:
        yield wrong(SUBJECT, message, remedy)
    elif free < ROOM_BYTES_WARNING:
        yield warning(SUBJECT, message, remedy)
    else:
        yield ok(SUBJECT, message)


def of_open_files(limit: int) -> Iterator[Finding]:
    """Check the limit of open files. `limit`: value of `ulimit -n`."""
    shown = "any number of" if limit == resource.RLIM_INFINITY else f"{limit:,}"
    if limit != resource.RLIM_INFINITY and limit < OPEN_FILES_MIN:
        remedy = f"raise it: ulimit -n {OPEN_FILES_MIN * 16}, or LimitNOFILE= of the service"
        yield warning(SUBJECT, f"a process may open {shown} files", remedy)
    else:
        yield ok(SUBJECT, f"a process may open {shown} files")


def check_ports(ports: Mapping[str, int], is_free: Callable[[int], bool], remedy: str) -> Iterator[Finding]:
    """Check that each port is free. The ports belong to parts that don't run now."""
    taken = {purpose: port for purpose, port in ports.items() if not is_free(port)}
    for purpose, port in taken.items():
        message = f"port {port} on 127.0.0.1 for {purpose} is used by another program"
        yield wrong(SUBJECT, message, remedy)
    if ports and not taken:
        yield ok(SUBJECT, "the ports of the parts that do not run yet are free")
