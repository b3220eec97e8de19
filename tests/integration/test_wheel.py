"""The wheel as a user installs it: an empty environment, an empty working directory, and no checkout."""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from strandline.core.extras import EXTRAS
from strandline.services.embedded.addresses import StackAddresses
from tests.integration.test_example import still_running
from tests.support.installed_wheel import (
    ROOT,
    InstalledWheel,
    build_wheel,
    locked_packages,
    packages_without_extras,
)
from tests.support.ports import free_port_offset

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
NAB = ROOT / "examples/nab.yaml"
READINGS = ROOT / "examples/readings.ndjson"


@pytest.fixture(scope="module")
def wheel() -> Path:
    return build_wheel()


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> InstalledWheel:
    """The wheel with the packages of the lock file, as docs/releases.md installs it."""
    return InstalledWheel(tmp_path_factory.mktemp("locked"), wheel, locked_packages())


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> InstalledWheel:
    """The wheel without any extra."""
    return InstalledWheel(tmp_path_factory.mktemp("bare"), wheel, packages_without_extras())


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """A folder with the documents of the README, outside of the checkout."""
    for file in (NAB, READINGS):
        shutil.copy(file, tmp_path)
    return tmp_path


@pytest.fixture
def data_dir(installed: InstalledWheel, tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "stack"
    yield directory
    if directory.exists():
        installed.run("down", "--data-dir", directory)


def test_the_wheel_contains_every_file_of_the_package(wheel: Path) -> None:
    """Pages of the docs are no part of it."""
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "strandline"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = {name for name in tracked.stdout.split() if not name.endswith(".md")}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert found == expected


def test_the_same_commit_gives_the_same_wheel(wheel: Path) -> None:
    first = wheel.read_bytes()
    assert build_wheel().read_bytes() == first


@pytest.mark.parametrize("packages", ["installed", "bare"])
def test_a_wheel_runs_a_pipeline_locally(packages: str, documents: Path, request: pytest.FixtureRequest) -> None:
    environment: InstalledWheel = request.getfixturevalue(packages)
    done = environment.run("pipeline", "run", documents / NAB.name, "--input", documents / READINGS.name)
    assert done.returncode == 0, done.stderr
    assert "576 records, 576 accepted; results: 49 of hourly, 3 of daily" in done.stdout + done.stderr
    assert list(environment.work.iterdir()) == []


FORMATS = ROOT / "examples/formats"
NOTICE = """
from strandline.notices.channels.apprise import AppriseSpec, note
raise SystemExit(note(AppriseSpec(url={"secret": "PHONE"})))
"""
USES = {
    "avro": ["strandline", "pipeline", "run", FORMATS / "avro.yaml", "--input", READINGS],
    "protobuf": ["strandline", "pipeline", "run", FORMATS / "protobuf.yaml", "--input", READINGS],
    "embedded": ["strandline", "up", "--detach", "--data-dir", "stack"],
    "postgresql": ["python", "-m", "strandline.services.setup"],
    "apprise": ["python", "-c", NOTICE],
}
"""Extra -> a command that needs it."""


@pytest.mark.guarantee(
    "G1003",
    "A feature whose extra isn't installed stops with a message that names the extra and the command that installs it.",
    promise="failures-are-reported-with-their-remedy",
)
@pytest.mark.parametrize("extra", USES)
def test_a_feature_without_its_extra_names_it(extra: str, bare: InstalledWheel) -> None:
    program, *arguments = USES[extra]
    more = ["--port-offset", free_port_offset()] if extra == "embedded" else []
    run = bare.run if program == "strandline" else bare.python
    ledger = "postgresql+psycopg://strandline@127.0.0.1/strandline"
    settings = {"STRANDLINE_LEDGER_URL": ledger} if extra == "postgresql" else {}
    done = run(*arguments, *more, limit_s=240, **settings)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.rstrip().endswith(f"it belongs to the extra '{extra}': pip install 'strandline[{extra}]'")
    assert "Traceback" not in done.stderr, done.stderr
    assert set(USES) == set(EXTRAS.values())
    shutil.rmtree(bare.work / "stack", ignore_errors=True)


def test_a_wheel_starts_a_stack_that_computes_results(
    installed: InstalledWheel, documents: Path, data_dir: Path
) -> None:
    """The ledger is migrated, the console has its page and its scripts, and a job computes results."""
    offset = free_port_offset()
    addresses = StackAddresses.of(data_dir, offset)
    stack = ("--data-dir", data_dir)
    without = {"STRANDLINE_STANDBYS": "0"}
    up = installed.run("up", "--detach", *stack, "--port-offset", offset, limit_s=400, **without)
    assert up.returncode == 0, up.stdout + up.stderr
    with httpx.Client(trust_env=False, timeout=30) as client:
        page = client.get(f"{addresses.api_url}/")
        assert page.status_code == 200, page.text
        linked = re.findall(r'(?:src|href)="(?!data:|https?:|#)([^"]+)"', page.text)
        assert linked, page.text
        for name in linked:
            assert client.get(httpx.URL(addresses.api_url).join(name)).status_code == 200, name
        applied = installed.run("apply", documents / NAB.name, *stack)
        assert applied.returncode == 0, applied.stdout + applied.stderr
        sent = client.post(
            f"{addresses.ingest_url}/v1/streams/machines/records",
            content=READINGS.read_bytes(),
            headers={"Content-Type": "application/x-ndjson"},
        )
        assert sent.status_code == 200, sent.text
    drained = installed.run("job", "stop", "nab", "--drain", *stack, limit_s=240)
    assert drained.returncode == 0, drained.stdout + drained.stderr
    audited = installed.run("audit", "nab", *stack, limit_s=240)
    assert audited.returncode == 0, audited.stdout + audited.stderr
    assert "52" in audited.stdout, audited.stdout
    down = installed.run("down", *stack)
    assert down.returncode == 0, down.stderr
    assert still_running(data_dir) == []
    assert list(installed.work.iterdir()) == []


def test_a_wheel_runs_the_example(installed: InstalledWheel, data_dir: Path) -> None:
    done = installed.run(
        "example", "--data-dir", data_dir, "--port-offset", free_port_offset(), "--seconds", "60", limit_s=420
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "every spoiled record is a dead letter with its reason, and no other record is" in output
    assert re.search(r"windows emitted: .*per_minute [\d,]+", output)
    assert still_running(data_dir) == []
    assert list(installed.work.iterdir()) == []
