"""A Dockerfile as its steps, and what an image says about the processes made from it."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Step:
    word: str
    text: str


@dataclass(frozen=True)
class Image:
    """Stacked directories, the lowest first, and the settings of the Dockerfile."""

    layers: tuple[Path, ...] = ()
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": DEFAULT_PATH})
    user: str = ""
    directory: str = "/"
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    stop_signal: str = "SIGTERM"


def parse(text: str) -> list[Step]:
    """The steps in order; comments are left out and continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", "", "\n".join(lines))
    return [Step(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def with_setting(image: Image, step: Step) -> Image:
    """The image after a step that changes no file. Raises ValueError for a word that is not known."""
    match step.word:
        case "ENV":
            pairs = dict(part.split("=", 1) for part in shlex.split(_filled_in(step.text, image.environment)))
            return replace(image, environment=image.environment | pairs)
        case "USER":
            return replace(image, user=step.text)
        case "WORKDIR":
            return replace(image, directory=str(Path(image.directory) / step.text))
        case "VOLUME":
            return replace(image, volumes=(*image.volumes, *json.loads(step.text)))
        case "ENTRYPOINT":
            return replace(image, entrypoint=tuple(json.loads(step.text)), command=())
        case "CMD":
            return replace(image, command=tuple(json.loads(step.text)))
        case "STOPSIGNAL":
            return replace(image, stop_signal=step.text)
        case "LABEL":
            return image
    raise ValueError(f"a step that is not known: {step}")


def _filled_in(text: str, environment: dict[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda found: environment.get(found[1], ""), text)
