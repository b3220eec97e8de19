"""Images built by running the steps of a Dockerfile, each step once: its output is kept as long as no earlier step
changes.

No registry of images is used. `FROM` uses a stage of the same file, or the Dockerfile with that name in `standins`.
That Dockerfile builds the content of the official image from Debian's packages and the servers of the embedded stack.
The lowest image is a system made by debootstrap.
"""

from __future__ import annotations

import fcntl
import fnmatch
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from tests.support.containers.bundles import Bundle, configuration, user_and_home
from tests.support.containers.dockerfile import Image, Step, parse, with_setting
from tests.support.containers.machine import Machine
from tests.support.containers.overlays import mounted

STANDINS = Path(__file__).parent / "standins"
SUITE = "bookworm"
STEP_TIMEOUT_S = 1800
_OF_PIP = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "http_proxy", "https_proxy", "no_proxy")


class ImageStore:
    """Images below a directory, made in a machine that has this machine's network."""

    def __init__(self, directory: Path, machine: Machine, contexts: Mapping[str, Path]) -> None:
        """`contexts`: further directories that a step may copy from, by name."""
        self._directory = directory
        self._machine = machine
        self._contexts = contexts
        self.steps_run: list[Step] = []
        """Steps that were not kept from an earlier time."""

    def named(self, reference: str) -> Image:
        """Return the substitute for an image of a registry, like `apache/kafka:4.2.1`."""
        name = reference.split("@")[0].split("/")[-1].split(":")[0]
        if name == "debian":
            return Image((self._debian(),))
        return self.build(STANDINS / f"{name}.Dockerfile", STANDINS)

    def build(self, dockerfile: Path, context: Path) -> Image:
        """Run the steps. Raises RuntimeError with what a step printed where it fails."""
        stages: dict[str, Image] = {}
        image, name = Image(), ""
        with tempfile.TemporaryDirectory(prefix="strandline-context-") as sent:
            _send(context, Path(sent))
            for step in parse(dockerfile.read_text(encoding="utf-8")):
                if step.word == "FROM":
                    reference, _, name = step.text.partition(" AS ")
                    image = stages.get(reference) or self.named(reference)
                else:
                    image = self._after(step, image, stages, Path(sent))
                stages[name] = image
        return image

    def _after(self, step: Step, image: Image, stages: dict[str, Image], context: Path) -> Image:
        match step.word:
            case "RUN":
                layer = self._layer(step, image, "")
            case "COPY":
                layer = self._copied(step, image, stages, context)
            case "WORKDIR":
                image = with_setting(image, step)
                layer = self._layer(Step("RUN", f"mkdir -p {shlex.quote(image.directory)}"), image, "")
            case _:
                return with_setting(image, step)
        return replace(image, layers=(*image.layers, layer))

    def _copied(self, step: Step, image: Image, stages: dict[str, Image], context: Path) -> Path:
        *sources, target = step.text.split()
        source_layers: tuple[Path, ...] = (context,)
        if sources[0].startswith("--from="):
            name = sources.pop(0).removeprefix("--from=")
            source_layers = stages[name].layers if name in stages else (self._contexts[name],)
        what = "".join(map(str, source_layers[:-1])) + _digest(source_layers[-1], sources)
        into = str(Path(image.directory) / target) + ("/" if target.endswith("/") else "")
        return self._layer(step, image, what, source_layers, sources, into)

    def _layer(
        self,
        step: Step,
        image: Image,
        what: str,
        source_layers: tuple[Path, ...] = (),
        sources: list[str] | None = None,
        target: str = "",
    ) -> Path:
        """The directory with what a step writes; made where it is not there yet. `what`: what else it depends on."""
        before = [*(layer.name for layer in image.layers), image.environment, image.user, image.directory]
        digest = hashlib.sha256(json.dumps([before, step.word, step.text, what]).encode()).hexdigest()

        def make(work: Path) -> None:
            self.steps_run.append(step)
            with mounted(self._machine, image.layers, work / "changes", work / "root") as root:
                if sources is None:
                    self._run(step, image, work, root)
                elif len(source_layers) == 1:
                    self._copy(source_layers[0], sources, root, target)
                else:
                    with mounted(self._machine, source_layers, work / "from-changes", work / "from") as stage:
                        self._copy(stage, sources, root, target)

        return self._once(digest[:20], make)

    def _once(self, name: str, make: Callable[[Path], None]) -> Path:
        """The directory of that name; where it is not there yet, what `make` puts into `changes` below the directory that it is
        given. Another process that wants it too waits."""
        layer = self._directory / "layers" / name
        layer.parent.mkdir(parents=True, exist_ok=True)
        with (self._directory / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not layer.exists():
                work = self._directory / "unfinished"
                if work.exists():
                    shutil.rmtree(work)
                work.mkdir()
                make(work)
                (work / "changes").rename(layer)
                shutil.rmtree(work)
        return layer

    def _copy(self, source: Path, names: list[str], root: Path, target: str) -> None:
        """Copy like Docker: the content of a directory, all owned by root."""
        inside = root / target.lstrip("/")
        commands = []
        for name in names:
            path = f"{source}/{name.lstrip('/')}".rstrip("/")
            if self._machine.run("sh", "-c", f"test -d {path} && echo directory || true"):
                commands.append(f"mkdir -p {inside} && cp -a {path}/. {inside}/")
            else:
                place = inside if target.endswith("/") else inside.parent
                commands.append(f"mkdir -p {place} && cp -a {path} {inside}")
        self._machine.run("sh", "-c", " && ".join(commands), timeout_s=STEP_TIMEOUT_S)

    def run(self, image: Image, *arguments: str) -> str:
        """Return the output of a program that runs as the image's user. Files that it writes are dropped."""
        with tempfile.TemporaryDirectory(prefix="strandline-run-") as directory:
            work = Path(directory)
            with mounted(self._machine, image.layers, work / "changes", work / "root") as root:
                user, _ = user_and_home(image.user, self._machine.run("cat", root / "etc/passwd"))
                return self._executed(Bundle(list(arguments), image.environment, user, image.directory), work, root)

    def _run(self, step: Step, image: Image, work: Path, root: Path) -> None:
        binds, environment = self._registries()
        command = ["/bin/sh", "-c", step.text]
        bundle = Bundle(command, image.environment | environment, (0, 0), image.directory, binds=binds)
        self._executed(bundle, work, root)

    def _executed(self, bundle: Bundle, work: Path, root: Path) -> str:
        name = uuid.uuid4().hex
        text = json.dumps(configuration(replace(bundle, name=name), root))
        (work / "config.json").write_text(text, encoding="utf-8")
        return self._machine.run("runc", "run", "--bundle", work, name, timeout_s=STEP_TIMEOUT_S)

    def _registries(self) -> tuple[list[tuple[Path, str, bool]], dict[str, str]]:
        """Return the settings that this machine's pip and apt need for their registries, which Docker would get as
        build arguments."""
        environment = {name: os.environ[name] for name in _OF_PIP if name in os.environ}
        binds = [(Path("/etc/resolv.conf").resolve(), "/etc/resolv.conf", True)]
        for variable, path in (
            ("PIP_CERT", os.environ.get("PIP_CERT", "")),
            ("PIP_CONFIG_FILE", os.environ.get("PIP_CONFIG_FILE", "/etc/pip.conf")),
        ):
            if Path(path).is_file():
                environment[variable] = f"/dev/shm/{variable}"
                binds.append((Path(path), environment[variable], True))
        return binds, environment

    def _debian(self) -> Path:
        """A small system from the archive that this machine's apt is set to."""

        def make(work: Path) -> None:
            listed = ["apt-get", "indextargets", "Created-By: Packages", "--format", "$(RELEASE) $(SITE)"]
            answer = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
            site = next(line.split()[1] for line in answer.splitlines() if line.split()[0] == SUITE)
            arguments = ("--variant=minbase", SUITE, work / "changes", site)
            self._machine.run("debootstrap", *arguments, timeout_s=STEP_TIMEOUT_S)

        return self._once(f"debian-{SUITE}", make)


def _send(context: Path, sent: Path) -> None:
    """Send the files of the context to the builder: all, or those that .dockerignore allows by lines with `!NAME`."""
    rules = context / ".dockerignore"
    lines = rules.read_text(encoding="utf-8").splitlines() if rules.exists() else []
    lines = [line for line in lines if line and not line.startswith("#")]
    never = [line.removeprefix("**/") for line in lines if line.startswith("**/")]
    names = [line[1:] for line in lines if line.startswith("!")] if "*" in lines else os.listdir(context)
    for name in names:
        if (context / name).is_dir():
            shutil.copytree(context / name, sent / name, ignore=shutil.ignore_patterns(*never))
        elif not any(fnmatch.fnmatch(name, pattern) for pattern in never):
            shutil.copy2(context / name, sent / name)
    for path in [sent, *sent.rglob("*")]:
        os.chown(path, 0, 0)


def _digest(layer: Path, names: list[str]) -> str:
    """Return a digest of the names, modes, and bytes of the files copied from a directory.

    For a stage, its layers' names are enough.
    """
    if layer.parent.name == "layers":
        return layer.name
    digest = hashlib.sha256()
    for name in names:
        top = layer / name.lstrip("/")
        for path in sorted([top, *top.rglob("*")]):
            if path.is_file():
                digest.update(f"{path.relative_to(layer)} {path.stat().st_mode}\n".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
