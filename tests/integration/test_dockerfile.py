"""Every step of our Dockerfile, executed on replacements of its base images, and the contents of the resulting image."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.core.settings import Settings
from tests.support.containers.compose import ROOT
from tests.support.containers.deployment import image_store
from tests.support.containers.images import SUITE, ImageStore
from tests.support.containers.machine import Machine, missing

DOCKERFILE = ROOT / "Dockerfile"
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(missing()), reason=f"the steps of the Dockerfile were NOT run: {missing()}"),
]


@pytest.fixture(scope="module")
def builder() -> Iterator[Machine]:
    with Machine(own_network=False) as made:
        yield made


@pytest.fixture(scope="module")
def store(builder: Machine) -> ImageStore:
    return image_store(builder)


def test_every_step_runs(store: ImageStore) -> None:
    """Steps that wrote files at an earlier time are not repeated for the same files after the same steps."""
    image = store.build(DOCKERFILE, ROOT)
    assert (image.user, image.directory, image.volumes) == ("10001", "/var/lib/strandline", ("/var/lib/strandline",))
    again = len(store.steps_run)
    store.build(DOCKERFILE, ROOT)
    assert len(store.steps_run) == again


def test_the_image_holds_what_its_processes_need_and_nothing_of_the_build(store: ImageStore, builder: Machine) -> None:
    image = store.build(DOCKERFILE, ROOT)
    asked = (
        "id --user; stat --format %U:%G /var/lib/strandline; pip list --format freeze; java -version 2>&1; ps --version;"
        "strandline --help; ls -d /build /root/.cache /var/lib/apt/lists/* || true"
    )
    told = store.run(image, "sh", "-c", asked)
    assert told.startswith("10001\nstrandline:strandline\n")
    locked = re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    installed = {line.lower().replace("_", "-") for line in told.splitlines()}
    wanted = {f"{name}=={version}".lower().replace("_", "-") for name, version in locked}
    assert {line for line in wanted - installed if not line.startswith("backports")} == set()
    assert "strandline==0.1.0" in installed
    assert 'openjdk version "17' in told and "procps" in told and "Usage: strandline" in told
    assert "/build" not in told.splitlines() and "/var/lib/apt/lists/" not in told


def test_a_step_that_fails_is_told_and_what_is_copied_again_runs_what_follows_again(
    builder: Machine, tmp_path: Path
) -> None:
    context, dockerfile = tmp_path / "context", tmp_path / "Dockerfile"
    context.mkdir()
    (tmp_path / "layers").mkdir()
    debian = f"debian-{SUITE}"
    (tmp_path / "layers" / debian).symlink_to(Settings.read().cache_dir / "test-images/layers" / debian)
    store = ImageStore(tmp_path, builder, {})
    dockerfile.write_text("FROM debian\nRUN echo 'no way' >&2; exit 3\n")
    with pytest.raises(RuntimeError, match=r"(?s)ended with 3.*no way"):
        store.build(dockerfile, context)
    dockerfile.write_text("FROM debian\nRUN echo first > /first\nCOPY file /file\nRUN cat /first /file > /both\n")
    for text in ("one", "two"):
        store.steps_run.clear()
        (context / "file").write_text(text)
        assert store.run(store.build(dockerfile, context), "cat", "/both") == f"first\n{text}"
    assert [step.word for step in store.steps_run] == ["COPY", "RUN"]
