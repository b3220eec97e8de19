"""Clocks that are wrong, and for which processes."""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.chaos.proxied_stack import ProxiedStack

_SOURCE = Path(__file__).with_name("wall_clock.c")
_SETTING = struct.Struct("=qqqd")
"""How the library reads one: by how much the wall clock is ahead, and the monotonic one, since when (ns), and the drift."""
_USED = struct.Struct("=q")
_STEP_BACK_NS = 1_000_000
"""Longer than it takes to write a setting."""
_CONTROL = "strandline.services.control"
_RUNNER = "strandline.processing.run.process"
CLOCK_KINDS = ("clock-step", "runner-clock", "kafka-clock", "control-clock")


@dataclass(frozen=True)
class WrongTime:
    """Interval in which a clock differed from the machine's, by the machine's wall clock, and the difference."""

    from_ms: int
    to_ms: int
    ahead_ms: int
    """At its beginning."""
    rate: float = 1.0
    """How many seconds it went in a second."""


class WallClock:
    """A clock of their own for the processes that are started with `environment`. Their wall clock can be set at once; and their
    time can run fast or slow, which moves the monotonic clock as well. The monotonic clock never steps.

    Made by a library of ours that is preloaded: with libfaketime 0.9.10, which Debian 12 has, `time.sleep` of Python fails.
    """

    def __init__(self, directory: Path, name: str = "wall-clock", *, some: str = "", one: str = "") -> None:
        """`some`: only for those of these processes that have it in their command line, and what they start; `one`: only for
        those that have it there. Both are added to the clock of all. Raises OSError where there is no C compiler, or it can't
        make the library."""
        library, self._file = directory / "wall-clock.so", directory / name
        if not library.exists():
            _compile(library)
        suffix = "_OF_SOME" if some else "_OF_ONE" if one else ""
        self.environment = {"LD_PRELOAD": str(library), f"WALL_CLOCK_FILE{suffix}": str(self._file)}
        if some:
            self.environment["WALL_CLOCK_SOME"] = some
        if one:
            self.environment["WALL_CLOCK_ONE"] = one
        self.wrong: list[WrongTime] = []
        """Past intervals, without the current setting."""
        self._ahead_s, self._rate, self._since_ms = 0, 1.0, 0
        self._monotonic_ns, self._since_ns = 0, 0
        self._used = 0
        self._file.write_bytes(_USED.pack(0) + 2 * _SETTING.pack(0, 0, 0, 0.0))

    def set(self, ahead_s: int, rate: float = 1.0) -> None:
        """Set the clock ahead of or behind the machine's clock immediately; from then on it runs at `rate` seconds per
        second."""
        now_ms, now_ns = time.time_ns() // 1_000_000, time.monotonic_ns()
        if self._ahead_s or self._rate != 1.0:
            self.wrong.append(WrongTime(self._since_ms, now_ms, self._ahead_s * 1_000, self._rate))
        if rate < self._rate:
            # A process may still look by the old setting in a moment, and must not see time go back by the new one.
            now_ns += _STEP_BACK_NS
        self._monotonic_ns += int((self._rate - 1.0) * (now_ns - self._since_ns))
        self._ahead_s, self._rate, self._since_ms, self._since_ns = ahead_s, rate, now_ms, now_ns
        self._used = 1 - self._used
        setting = _SETTING.pack(ahead_s * 1_000_000_000, self._monotonic_ns, now_ns, rate - 1.0)
        with self._file.open("r+b", buffering=0) as file:
            file.seek(_USED.size + self._used * _SETTING.size)
            file.write(setting)
            file.seek(0)
            file.write(_USED.pack(self._used))


def make_clocks(
    directory: Path, stack: ProxiedStack, services: Sequence[str], kinds: Sequence[str]
) -> dict[str, dict[str, WallClock]]:
    """Kind of fault -> whose clock -> the clock, of each of these kinds; the stack's processes get them when they are started.
    `services`: the control services that have a clock of their own; none: they have one together. Raises OSError where none can
    be made."""
    found: dict[str, dict[str, WallClock]] = {}
    for kind, environment, some in (
        ("clock-step", stack.of_control, ""),
        ("runner-clock", stack.of_control, _RUNNER),
        ("kafka-clock", stack.of_kafka, ""),
    ):
        if kind in kinds:
            found[kind] = {"": WallClock(directory, kind, some=some)}
            environment |= found[kind][""].environment
    if "control-clock" in kinds:
        found["control-clock"] = {
            name: WallClock(directory, f"control-clock-{name}", one=_CONTROL) for name in services or [""]
        }
        for name, clock in found["control-clock"].items():
            environment = stack.of_service.setdefault(name, {}) if name else stack.of_control
            environment |= clock.environment
    return found


def _compile(library: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        raise OSError("there is no C compiler; `apt-get install gcc libc6-dev` brings one")
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(done.stderr.strip())
