"""The start of the embedded servers: no old files accumulate on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.services.embedded.elasticsearch_server import elasticsearch_program
from strandline.services.embedded.kafka_server import kafka_program
from strandline.services.processes.child_process import Program


def kafka(home: Path, data_dir: Path) -> Program:
    (data_dir / "log").mkdir(parents=True, exist_ok=True)  # formatted before
    return kafka_program(home, Path("/usr/bin/java"), data_dir, data_dir / "kafka.log", 1, 2)


def elasticsearch(home: Path, data_dir: Path) -> Program:
    (home / "config").mkdir(parents=True, exist_ok=True)
    for name in ("roles.yml", "role_mapping.yml", "users", "users_roles"):
        (home / "config" / name).touch()
    return elasticsearch_program(home, Path("/jdk/bin/java"), data_dir, data_dir / "elasticsearch.log", 1, 2)


@pytest.mark.guarantee("G112")
@pytest.mark.parametrize("make", [kafka, elasticsearch])
def test_what_a_killed_server_left_is_gone_before_the_next_start(make, tmp_path: Path) -> None:
    home, data_dir = tmp_path / "home", tmp_path / "data"
    program = make(home, data_dir)
    scratch = data_dir / "tmp"
    given = [*program.arguments, *program.environment.get("CLI_JAVA_OPTS", "").split()]
    (option,) = [one for one in given if one.startswith("-Djava.io.tmpdir=")]
    assert program.directory / option.partition("=")[2] == scratch
    (scratch / "liblz4-java-1.so").touch()
    (scratch / "final-flags1").mkdir()
    make(home, data_dir)
    assert list(scratch.iterdir()) == []
