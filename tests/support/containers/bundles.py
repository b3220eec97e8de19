"""Configuration of a container for runc: the OCI configuration that Docker would write for the same compose file."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Docker's own, for a container whose file drops none.
CAPABILITIES = [
    *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP"),
    *("NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
]
SHM_BYTES = 64 << 20
_NAMESPACES = ("pid", "ipc", "uts", "mount")


@dataclass(frozen=True)
class Bundle:
    """One container."""

    arguments: list[str]
    environment: dict[str, str]
    user: tuple[int, int]
    directory: str = "/"
    hostname: str = ""
    read_only: bool = False
    binds: list[tuple[Path, str, bool]] = field(default_factory=list)
    """What is mounted from outside: source, target, whether it is read-only."""
    tmpfs: list[str] = field(default_factory=list)
    """Mounts as in a compose file: target:options."""
    capabilities: list[str] = field(default_factory=lambda: CAPABILITIES)
    no_new_privileges: bool = False
    open_files: int | None = None
    """None: as many as this machine's own processes."""
    shm_bytes: int = SHM_BYTES
    memory_bytes: int | None = None
    processes: int | None = None
    network: Path | None = None
    """The network's namespace; None: that of the machine."""
    name: str = ""
    """Name of its control groups, which are below those of the tests' process."""


def configuration(bundle: Bundle, root: Path) -> dict[str, Any]:
    """The content of config.json."""
    capabilities = [f"CAP_{name}" for name in bundle.capabilities]
    # A process that is not root has none of them in effect, whatever it may be given.
    effective = capabilities if bundle.user[0] == 0 else []
    uid, gid = bundle.user
    namespaces: list[dict[str, str]] = [{"type": kind} for kind in _NAMESPACES]
    if bundle.network is not None:
        namespaces.append({"type": "network", "path": str(bundle.network)})
    limits = []
    if bundle.open_files is not None:
        # A machine that lacks the right to raise its own bound gives no more than that.
        files = min(bundle.open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        limits = [{"type": "RLIMIT_NOFILE", "soft": files, "hard": files}]
    resources: dict[str, Any] = {}
    if bundle.memory_bytes is not None:
        # Docker allows as much swap again; this machine has none.
        resources["memory"] = {"limit": bundle.memory_bytes}
    if bundle.processes is not None:
        resources["pids"] = {"limit": bundle.processes}
    return {
        "ociVersion": "1.0.2",
        "root": {"path": str(root), "readonly": bundle.read_only},
        "hostname": bundle.hostname,
        "process": {
            "terminal": False,
            "args": bundle.arguments,
            "env": [f"{name}={value}" for name, value in bundle.environment.items()],
            "cwd": bundle.directory,
            "user": {"uid": uid, "gid": gid, "additionalGids": [gid]},
            "capabilities": {
                "bounding": capabilities,
                "permitted": effective,
                "effective": effective,
                "inheritable": [],
                "ambient": [],
            },
            "noNewPrivileges": bundle.no_new_privileges,
            "rlimits": limits,
        },
        "mounts": _mounts(bundle),
        "linux": {
            "namespaces": namespaces,
            "resources": resources,
            "cgroupsPath": f"strandline-test/{bundle.name}",
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    }


def user_and_home(text: str, passwd: str) -> tuple[tuple[int, int], str]:
    """The numbers of `user:group`, and the user's home; what is not said is as in the image's /etc/passwd."""
    name, _, group = text.partition(":")
    entries = [line.split(":") for line in passwd.splitlines()]
    known = next((entry for entry in entries if (name or "0") in (entry[0], entry[2])), [name, "", name, "0", "", "/"])
    return (int(known[2]), int(group or known[3])), known[5]


def _mounts(bundle: Bundle) -> list[dict[str, Any]]:
    safe = ["nosuid", "noexec", "nodev"]
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": safe},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
        {
            "destination": "/dev/pts",
            "type": "devpts",
            "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        },
        {
            "destination": "/dev/shm",
            "type": "tmpfs",
            "source": "shm",
            "options": [*safe, "mode=1777", f"size={bundle.shm_bytes}"],
        },
        {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": safe},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*safe, "ro"]},
        {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": [*safe, "ro"]},
    ]
    for line in bundle.tmpfs:
        target, _, options = line.partition(":")
        # As Docker does: nothing on it may be executed unless the file says `exec`.
        given = options.split(",") if options else []
        kept = [option for option in safe if option.removeprefix("no") not in given]
        mounts.append({"destination": target, "type": "tmpfs", "source": "tmpfs", "options": [*kept, *given]})
    for source, target, read_only in bundle.binds:
        options = ["rbind", "rprivate", "ro" if read_only else "rw"]
        mounts.append({"destination": target, "type": "bind", "source": str(source), "options": options})
    # A mount inside another one comes after it.
    return mounts[:7] + sorted(mounts[7:], key=lambda mount: str(mount["destination"]).count("/"))
