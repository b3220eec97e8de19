"""Directories that the user of another process can change, and that root also uses. No link in them is followed.

A user who can change a directory can replace each of its entries by a link at any moment. So root changes entries of such a
directory only through descriptors that were opened without following links. Root writes new files only into directories that
belong to root until they are complete.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from strandline.core.errors import StackError

_REMEDY = "stop the stack, check the directory and delete the entry, then start the stack again"


def take_directory(directory: Path) -> None:
    """Create the directory if it is missing. If this process is root, take the directory back, so that no other user can change
    its entries."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    if os.geteuid() != 0:
        return
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fchown(number, 0, 0)
        os.fchmod(number, 0o755)
    finally:
        os.close(number)


def require_directory(directory: Path) -> None:
    """Create the directory if it is missing. Raises StackError if a link or a file has its name. No other user can change its
    parent."""
    try:
        directory.mkdir(mode=0o755)
    except FileExistsError:
        if not stat.S_ISDIR(directory.lstat().st_mode):
            raise StackError(f"{directory} is not a directory, and links aren't followed there; {_REMEDY}") from None


def require_own_and_empty(directory: Path) -> None:
    """Raise StackError if the directory has entries, or if another user can change it."""
    if directory.lstat().st_uid != os.geteuid() or any(directory.iterdir()):
        raise StackError(f"the old files in {directory} could not be deleted; {_REMEDY}")


def give_tree(top: Path, user: int, group: int) -> None:
    """Give the directory and its content to a user, except files that already belong to the user. Follows no link.

    Raises StackError if a file of another user has a second name, because it can be a file outside the directory.
    """
    for _, directories, files, number in os.fwalk(top, follow_symlinks=False):
        for name in (*directories, *files):
            _give(name, number, user, group, top)
    _give(str(top), None, user, group, top)


def read_small(path: Path, bytes_max: int = 64) -> str:
    """Return the text of a small regular file. Follows no link, and doesn't wait for a pipe. Raises OSError, ValueError."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise ValueError(f"{path} is not a regular file")
        return os.read(number, bytes_max).decode("ascii")
    finally:
        os.close(number)


def _give(name: str, directory: int | None, user: int, group: int, top: Path) -> None:
    """Change the owner of the file of the descriptor, not of the file that gets the name a moment later."""
    number = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=directory)
    try:
        found = os.fstat(number)
        if stat.S_ISLNK(found.st_mode) or (found.st_uid, found.st_gid) == (user, group):
            return
        if not stat.S_ISDIR(found.st_mode) and found.st_nlink > 1:
            raise StackError(f"{name} below {top} belongs to user {found.st_uid} and has a second name; {_REMEDY}")
        os.chown(f"/proc/self/fd/{number}", user, group)
    finally:
        os.close(number)
