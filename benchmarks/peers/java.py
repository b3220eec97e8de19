"""Hazelcast Jet and Flink: their jars, fetched by coordinates like those of the servers, and our main programs, compiled here."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from strandline.core.errors import StackError
from strandline.services.embedded.artifacts import JAVA_VERSION_MIN, Artifact, find_java, provide

SNAPSHOT_EVERY_MS = 1_000
_HERE = Path(__file__).parent
_SHARED = ("Work", "Reading", "Answer")


def _module(organisation: str, name: str, revision: str) -> str:
    return f'<dependency org="{organisation}" name="{name}" rev="{revision}" conf="default->default"/>'


@dataclass(frozen=True)
class JavaPeer:
    """A stream processor on the JVM, and our main program that runs the works on it."""

    main: str
    artifact: Artifact
    options: tuple[str, ...]
    """Options of the JVM that the peer's documentation requires."""

    def compile(self, cache_dir: Path, directory: Path) -> str:
        """Fetch the jars into the cache on first use, compile the main program into `directory`, and return the class path.
        Raises StackError."""
        compiler = _find_compiler()
        jars = provide(self.artifact, cache_dir, find_java(), lambda fetched_bytes: None)
        classes = directory / self.main
        sources = [str(_HERE / f"{name}.java") for name in (*_SHARED, self.main)]
        done = subprocess.run(
            [compiler, "-nowarn", "-d", str(classes), "-cp", f"{jars}/*", *sources],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise StackError(f"{self.main}.java does not compile: {done.stderr[:2000]}")
        return f"{classes}:{jars}/*"

    def command(self, class_path: str, scratch: Path, arguments: list[str]) -> list[str]:
        """Return the command of the main program, in a JVM with the heap and the collector of all sides."""
        options = ["-Xmx1g", "-XX:+UseSerialGC", f"-Djava.io.tmpdir={scratch}", *self.options]
        return [str(find_java()), *options, "-cp", class_path, self.main, *arguments]


def _find_compiler() -> Path:
    """Return the compiler of the Java that runs the servers, or the one on the PATH. Raises StackError."""
    beside = find_java().with_name("javac")
    found = beside if beside.exists() else shutil.which("javac")
    if found is None:
        raise StackError(
            f"there is no Java compiler for the main programs of Jet and Flink; install a JDK (Debian: apt-get install "
            f"openjdk-{JAVA_VERSION_MIN}-jdk-headless), or leave both out: --side strandline --side spark"
        )
    return Path(found)


JET = JavaPeer(
    main="JetPeer",
    artifact=Artifact(
        name="hazelcast-jet-5.6.0",
        dependencies=_module("com.hazelcast", "hazelcast", "5.6.0")
        + _module("com.hazelcast.jet", "hazelcast-jet-kafka", "5.6.0")
        + _module("com.fasterxml.jackson.core", "jackson-core", "2.18.2")
        # Kafka's client needs it to start.
        + _module("org.slf4j", "slf4j-api", "1.7.36"),
        download_bytes=37_460_000,
        sums=_HERE / "hazelcast-jet-5.6.0.txt",
    ),
    options=(
        "--add-modules=java.se",
        "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
        "--add-opens=java.base/java.lang=ALL-UNNAMED",
        "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
        "--add-opens=java.management/sun.management=ALL-UNNAMED",
        "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
    ),
)
FLINK = JavaPeer(
    main="FlinkPeer",
    artifact=Artifact(
        name="flink-2.2.1",
        dependencies=_module("org.apache.flink", "flink-clients", "2.2.1")
        + _module("org.apache.flink", "flink-connector-base", "2.2.1")
        + _module("org.apache.flink", "flink-connector-kafka", "5.0.0-2.2")
        + _module("com.fasterxml.jackson.core", "jackson-core", "2.18.2"),
        download_bytes=84_080_000,
        sums=_HERE / "flink-2.2.1.txt",
    ),
    options=("--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED"),
)
