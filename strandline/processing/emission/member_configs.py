"""Configs of the members of a pool (the jobs that run in it) as files. A batch names a config by its digest, and each worker
compiles it once."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from pyspark import cloudpickle

from strandline.core.errors import StrandlineError
from strandline.processing.emission.keyed_task import KeyedTask
from strandline.processing.emission.state_files import StateFiles
from strandline.processing.source.source_config import TaskConfig
from strandline.processing.source.source_task import SourceTask

_STATES = "states"
COMPILED_MAX = 1_024
"""Maximum number of compiled configs in a process. Another one is compiled again: 2 CPU-ms."""
_compiled: OrderedDict[tuple[str, str], CompiledMember] = OrderedDict()
"""Compiled configs of this process, by directory and digest. The last one was used last."""


@dataclass(frozen=True)
class MemberConfig:
    """Settings of a task for one run of a member. Contains no secret."""

    source: TaskConfig
    keyed: KeyedTask
    """With the directory of the member (`checkpoint`), which contains its state."""


class CompiledMember:
    """A config whose expressions and operators are compiled."""

    def __init__(self, config: MemberConfig) -> None:
        self.config = config
        self.source = SourceTask(config.source)
        self.keyed = config.keyed
        assert config.keyed.checkpoint is not None, "a member has a directory"
        self.states = StateFiles(config.keyed.checkpoint / _STATES)


class MemberConfigs:
    """The configs of one pool, in a directory that all executors see."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._name = str(directory)

    def add(self, config: MemberConfig) -> str:
        """Store a config, and return its digest. Raises OSError."""
        content = cloudpickle.dumps(config)  # type: ignore[no-untyped-call]
        digest = sha256(content).hexdigest()[:32]
        self._directory.mkdir(parents=True, exist_ok=True)
        new = self._directory / f"{digest}.{uuid4().hex}.tmp"
        new.write_bytes(content)
        new.replace(self._directory / digest)
        return digest

    def compiled(self, digest: str) -> CompiledMember:
        """Return the compiled config. Raises StrandlineError if the file is missing or damaged."""
        key = self._name, digest
        if key in _compiled:
            _compiled.move_to_end(key)
            return _compiled[key]
        path = self._directory / digest
        try:
            content = path.read_bytes()
        except OSError as error:
            raise StrandlineError(
                f"the file {path} with the settings of a job in a pool can't be read: {error}; the job starts again by itself"
            ) from error
        if sha256(content).hexdigest()[:32] != digest:
            raise StrandlineError(
                f"the file {path} with the settings of a job in a pool is damaged; the job starts again by itself"
            )
        found = _compiled[key] = CompiledMember(cloudpickle.loads(content))
        if len(_compiled) > COMPILED_MAX:
            _compiled.popitem(last=False)
        return found

    def remove(self, digest: str) -> None:
        """Remove the file of a config that no later batch names."""
        (self._directory / digest).unlink(missing_ok=True)
