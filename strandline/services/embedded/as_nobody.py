"""Runs another program as the user nobody, if root starts it: `python as_nobody.py PATH... -- COMMAND...`.

It is run by its path and uses only the standard library, so that it needs nothing of its environment. The program must use
PATHs (directories, or files) that can be below directories that only root can enter. There are three methods. The first that
works is used:

1. The user nobody can reach the paths: no preparation.
2. A private mount namespace, in which an empty directory with only the PATHs covers each closed directory. So the program needs
   no additional right, and sees no other content of closed directories. Root without CAP_SYS_ADMIN, as in most containers,
   can't create one.
3. One capability, CAP_DAC_READ_SEARCH: the program can enter every directory and read every file, but not write.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 1 << 12, 1 << 14, 1 << 18
_PR_SET_NO_NEW_PRIVS = 38
_COVER_OPTIONS = b"mode=0755,size=1m"


def become(paths: list[Path], command: list[str]) -> None:
    """Replace this process by the command. Raises OSError if it can't be run."""
    wanted = sorted({one for path in paths for one in (path.absolute(), path.resolve())})
    if _works(lambda: None, wanted):
        _drop()
    elif _works(lambda: cover(wanted), wanted):
        cover(wanted)
        _drop()
    else:
        sys.stderr.write(
            "the user nobody can't reach the paths otherwise, so the program keeps the capability CAP_DAC_READ_SEARCH\n"
        )
        sys.stderr.flush()
        command = [*_with_capability(), *command]
    os.execvp(command[0], command)  # noqa: S606  # no shell must read the arguments


def cover(paths: list[Path]) -> None:
    """In a private mount namespace, cover each closed directory above the paths, and mount the paths in it. Raises OSError."""
    closed = {above: [path for path in paths if above in path.parents] for above in filter(None, map(_closed, paths))}
    here = os.getcwd()
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> None:
        if getattr(libc, name)(*arguments) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    call("unshare", _CLONE_NEWNS)
    call("mount", None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None)
    opened = {
        path: os.open(path, os.O_PATH) for path in paths
    }  # in this namespace, and before any directory is covered
    before = os.umask(0o022)
    for above, below in closed.items():
        call("mount", b"none", os.fsencode(above), b"tmpfs", ctypes.c_ulong(_MS_NOSUID | _MS_NODEV), _COVER_OPTIONS)
        for path in below:
            if path.exists():
                continue  # below another path
            path.parent.mkdir(parents=True, exist_ok=True)
            source = f"/proc/self/fd/{opened[path]}"
            path.mkdir() if os.path.isdir(source) else path.touch()
            call("mount", source.encode(), os.fsencode(path), None, ctypes.c_ulong(_MS_BIND | _MS_REC), None)
    os.umask(before)
    for number in opened.values():
        os.close(number)
    os.chdir(here if os.path.isdir(here) else "/")  # a covered directory can't be the working directory


def _closed(path: Path) -> Path | None:
    """Return the topmost directory above the path that other users can't enter. None if there is none."""
    return next((above for above in reversed(path.parents) if not above.stat().st_mode & 0o001), None)


def _works(prepare: Callable[[], None], paths: list[Path]) -> bool:
    """Return True if the user nobody can use the paths after this preparation. It is tested in a child process."""
    pid = os.fork()
    if pid == 0:
        try:
            prepare()
            _drop()
            can = all(os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK) for path in paths)
            os._exit(0 if can else 1)
        except OSError:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _drop() -> None:
    """Become the user nobody permanently."""
    nobody = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setresgid(nobody.pw_gid, nobody.pw_gid, nobody.pw_gid)
    os.setresuid(nobody.pw_uid, nobody.pw_uid, nobody.pw_uid)
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _with_capability() -> list[str]:
    nobody = pwd.getpwnam("nobody")
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        sys.exit("setpriv is missing, which changes the user; install util-linux")
    return [
        setpriv,
        f"--reuid={nobody.pw_uid}",
        f"--regid={nobody.pw_gid}",
        "--clear-groups",
        "--inh-caps=+dac_read_search",
        "--ambient-caps=+dac_read_search",
        # Without this, access(2), with which Java checks that a file is readable, ignores capabilities.
        "--securebits=+no_setuid_fixup",
    ]


if __name__ == "__main__":
    end = sys.argv.index("--")
    become([Path(one) for one in sys.argv[1:end]], sys.argv[end + 1 :])
