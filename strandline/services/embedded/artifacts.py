"""Files of the servers: downloaded once with the Ivy jar of PySpark, verified with checksums of this package, and cached.

A server in the cache is complete and verified. It is downloaded and unpacked in a temporary directory, and moved to its place
in one step. At every start, it is verified again, to detect changed, missing, and additional files.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from strandline.core.errors import StackError
from strandline.services.embedded.preflight import require_free_space

JAVA_VERSION_MIN = 17
FREE_BYTES_MIN = 600 * 1024 * 1024
"""Space for one download: the archive, Ivy's copy of it, and the unpacked files."""
_SUMS_DIR = Path(__file__).parent
_NO_ANSWER = re.compile(
    r"Host \S+ not found|UnknownHost|Connection refused|Connection reset|timed out|Network is unreachable|No route to host"
    r"|SSLHandshake|Server access error"
)
_RETRIEVE_PATTERN = "[artifact]-[revision](-[classifier]).[ext]"


@dataclass(frozen=True)
class Artifact:
    """One server as published: its modules, and the list of its files with their SHA-256 checksums."""

    name: str
    """Name of the cached directory and of the list of checksums."""
    dependencies: str
    """Ivy's dependency elements."""
    download_bytes: int
    """Size of the download, for the progress bar."""
    archive: str | None = None
    """Zip file that contains everything in one top directory. None if the files are the jars of the modules."""
    archive_sum: str = ""
    sums: Path | None = None
    """List of checksums. Default: the list next to this module."""


KAFKA = Artifact(
    name="kafka-4.2.1",
    # The second module connects Kafka's logging to log4j. Without it, the broker starts but logs nothing.
    dependencies="""
        <dependency org="org.apache.kafka" name="kafka_2.13" rev="4.2.1" conf="default->default"/>
        <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="2.25.4" conf="default->default"
                    transitive="false"/>""",
    download_bytes=44_980_000,
)
ELASTICSEARCH = Artifact(
    name="elasticsearch-8.19.21",
    dependencies="""
        <dependency org="org.elasticsearch.distribution.integ-test-zip" name="elasticsearch" rev="8.19.21"
                    conf="default->default" transitive="false"><artifact name="elasticsearch" type="zip"/></dependency>""",
    download_bytes=106_871_955,
    archive="elasticsearch-8.19.21.zip",
    archive_sum="215d5f3dbf0609a149f6218a9e47b6ae2df34ebbff3c5754e35f15a5e5393c8a",
)


def find_java() -> Path:
    """Return the Java launcher that Spark also uses: JAVA_HOME's, otherwise the first one on the PATH.

    Raises StackError if there is none, or if it is older than Java 17.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    remedy = f"install a Java {JAVA_VERSION_MIN} runtime (Debian: apt-get install openjdk-17-jre-headless)"
    if found is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise StackError(f"there is no Java {where}, but Kafka, Elasticsearch, and Spark need it; {remedy}")
    arguments = [found, "-XshowSettings:properties", "-version"]
    answer = subprocess.run(arguments, capture_output=True, text=True, check=False)
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", answer.stderr)
    real_home = re.search(r"java\.home = (.+)", answer.stderr)
    if answer.returncode != 0 or version is None or real_home is None:
        raise StackError(f"{found} does not work ({answer.stderr.strip()[:200]}); {remedy}")
    if int(version[1]) < JAVA_VERSION_MIN:
        raise StackError(f"{found} is Java {version[1]}, too old for Kafka, Elasticsearch, and Spark; {remedy}")
    return Path(real_home[1].strip()) / "bin" / "java"


def provide(artifact: Artifact, cache_dir: Path, java: Path, progress: Callable[[int], None]) -> Path:
    """Return the directory with the server's verified files. Download them first if they aren't in the cache. `progress` is
    called with the number of downloaded bytes. Raises StackError if the network or the disk fails, or if a file differs from
    its checksum."""
    home = cache_dir / artifact.name
    with _locked(cache_dir, artifact.name):
        if not home.exists():
            remedy = "point STRANDLINE_CACHE_DIR at another disk"
            require_free_space(cache_dir, FREE_BYTES_MIN, f"fetching {artifact.name}", remedy)
            with tempfile.TemporaryDirectory(prefix=f"{artifact.name}-", dir=cache_dir) as work:
                _fetch(artifact, Path(work), java, progress)
                unpacked = _unpack(artifact, Path(work))
                _verify(artifact, unpacked)
                unpacked.rename(home)
        else:
            _verify(artifact, home)
    return home


@contextmanager
def _locked(cache_dir: Path, name: str) -> Iterator[None]:
    """Hold the lock of the cache. A second stack that starts at the same time waits, and then finds the files."""
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        lock = (cache_dir / f"{name}.lock").open("a")
    except OSError as error:
        raise StackError(
            f"can't write to the cache directory {cache_dir} ({error.strerror}); set STRANDLINE_CACHE_DIR"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(artifact: Artifact, work: Path, java: Path, progress: Callable[[int], None]) -> None:
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None and spark.origin is not None
    ivy = sorted((Path(spark.origin).parent / "jars").glob("ivy-*.jar"))[-1]
    module = work / "ivy.xml"
    module.write_text(
        f'<ivy-module version="2.0"><info organisation="strandline" module="{artifact.name}"/>'
        f"<dependencies>{artifact.dependencies}</dependencies></ivy-module>",
        encoding="utf-8",
    )
    arguments = [str(java), "-jar", str(ivy), "-cache", str(work / "cache"), "-ivy", str(module), "-confs", "default"]
    log = work.parent / f"{artifact.name}.log"
    with log.open("wb") as output:
        fetching = subprocess.Popen(
            [*arguments, "-retrieve", str(work / "files" / _RETRIEVE_PATTERN)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=work,
        )
    try:
        while True:
            try:
                code = fetching.wait(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                progress(min(artifact.download_bytes, _size_bytes(work / "cache")))
    finally:
        fetching.kill()
        fetching.wait()
    if code != 0:
        raise StackError(_fetch_failure(artifact, log.read_text(encoding="utf-8", errors="replace"), log))
    progress(artifact.download_bytes)


def _fetch_failure(artifact: Artifact, output: str, log: Path) -> str:
    """Return the error message, from the output of Ivy."""
    if "No space left on device" in output:
        return (
            f"the disk became full during the download of {artifact.name}; free some space, or set STRANDLINE_CACHE_DIR"
        )
    if _NO_ANSWER.search(output):
        return (
            f"can't download {artifact.name}, because the package registry does not respond; check the network "
            f"(and, behind a proxy, JAVA_TOOL_OPTIONS), then run the command again; log: {log}"
        )
    errors = [line.strip(": \t") for line in output.splitlines() if re.search(r"not found|ERROR|Exception", line)]
    return f"can't download {artifact.name} ({(errors or ['unknown reason'])[-1][:200]}); log: {log}"


def _size_bytes(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # Ivy moved it between the listing and the call.
    return total


def _unpack(artifact: Artifact, work: Path) -> Path:
    files = work / "files"
    if artifact.archive is None:
        return files
    archive = files / artifact.archive
    if not archive.exists() or _sum(archive) != artifact.archive_sum:
        raise StackError(f"the downloaded {artifact.archive} is not the file that this version expects; {_REFETCH}")
    try:
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(work / "unpacked")
    except OSError as error:
        raise StackError(f"can't unpack {artifact.archive} in {work.parent}: {error.strerror}") from error
    (unpacked,) = (work / "unpacked").iterdir()
    # The server can run as another user than the user who downloaded it.
    for path in [unpacked, *unpacked.rglob("*")]:
        path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
    return unpacked


_REFETCH = "nothing of it was used; if a proxy changes downloads, download without it"


def _verify(artifact: Artifact, home: Path) -> None:
    """Compare every file with the list. Raises StackError for the first file that is changed, missing, or not listed."""
    lines = (artifact.sums or _SUMS_DIR / f"{artifact.name}.txt").read_text(encoding="ascii").splitlines()
    expected = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    present = {str(path.relative_to(home)) for path in home.rglob("*") if not path.is_dir()}
    remedy = f"delete {home}, then run the command again to download it again"
    for name in sorted(expected.keys() | present):
        if name not in present:
            raise StackError(f"{name} of {artifact.name} is missing; {remedy}")
        if name not in expected:
            raise StackError(f"{name} is not a file of {artifact.name} in this version; {remedy}")
        if _sum(home / name) != expected[name]:
            raise StackError(f"{name} of {artifact.name} is not the file that this version expects; {remedy}")


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
