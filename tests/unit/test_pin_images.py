"""`make pin-images` against a registry of this test, with tokens and with digests of lists of platforms."""

from __future__ import annotations

import hashlib
import http.server
import importlib.util
import json
import re
import shutil
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("pin_images", ROOT / "scripts" / "pin_images.py")
assert _SPEC is not None and _SPEC.loader is not None
pin_images = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(pin_images)
INDEX = "application/vnd.oci.image.index.v1+json"


class Registry:
    """A registry that gives a manifest list for each tag it has, to who has a token for that repository."""

    def __init__(self) -> None:
        self.tags: dict[tuple[str, str], bytes] = {}
        self.requires_token = True
        self.header: str | None = None
        """Sent as the digest, instead of the right one."""
        self.scopes: list[str] = []
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry._answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, repository: str, tag: str) -> str:
        """A new list of platforms for the tag. Its digest."""
        content = json.dumps(
            {"mediaType": INDEX, "manifests": [], "of": f"{repository}:{tag}", "n": len(self.tags)}
        ).encode()
        self.tags[repository, tag] = content
        return f"sha256:{hashlib.sha256(content).hexdigest()}"

    def _answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        place = urlsplit(request.path)
        if place.path == "/token":
            (scope,) = parse_qs(place.query)["scope"]
            assert parse_qs(place.query)["service"] == ["images"]
            self.scopes.append(scope)
            return self._send(request, 200, json.dumps({"token": f"for {scope}"}).encode())
        found = re.fullmatch(r"/v2/(.+)/manifests/(.+)", place.path)
        assert found is not None and INDEX in request.headers["Accept"]
        scope = f"repository:{found[1]}:pull"
        if self.requires_token and request.headers["Authorization"] != f"Bearer for {scope}":
            challenge = f'Bearer realm="{self.url}/token",service="images",scope="{scope}"'
            return self._send(request, 401, b"{}", {"WWW-Authenticate": challenge})
        content = self.tags.get((found[1], found[2]))
        if content is None:
            return self._send(request, 404, b"{}")
        digest = self.header or f"sha256:{hashlib.sha256(content).hexdigest()}"
        return self._send(request, 200, content, {"Docker-Content-Digest": digest, "Content-Type": INDEX})

    @staticmethod
    def _send(
        request: http.server.BaseHTTPRequestHandler, code: int, content: bytes, headers: dict[str, str] | None = None
    ) -> None:
        request.send_response(code)
        for name, value in (headers or {}).items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)


@pytest.fixture
def registry() -> Iterator[Registry]:
    one = Registry()
    yield one
    one.close()


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Copies of the files of this repository."""
    return [Path(shutil.copy(ROOT / name, tmp_path / name)) for name in pin_images.FILES]


def images(files: list[Path]) -> set[tuple[str, str]]:
    return {(name, tag) for file in files for name, tag, _ in pin_images.references(file.read_text())}


def repository(name: str) -> str:
    return name if "/" in name else f"library/{name}"


def run(registry: Registry, files: list[Path], *more: str) -> int:
    code: int = pin_images.main([*more, "--registry", registry.url, *map(str, files)])
    return code


@pytest.mark.guarantee(
    "G795",
    "`make pin-images` writes the digest that the registry has for each tag into Dockerfile and compose files, "
    "checked against the content. If one tag can't be resolved, no file is changed.",
    promise="a-stack-keeps-its-data",
)
def test_every_image_of_the_repository_gets_the_digest_of_its_tag(registry: Registry, files: list[Path]) -> None:
    names = images(files)
    assert {name for name, _ in names} == {
        *("apache/kafka", "eclipse-mosquitto", "elasticsearch", "grafana/grafana", "kibana"),
        *("postgres", "prom/prometheus", "python"),
    }
    digests = {(name, tag): registry.add(repository(name), tag) for name, tag in names}
    before = {file: re.sub(r"@sha256:[0-9a-f]{64}", "", file.read_text()) for file in files}
    assert run(registry, files) == 0
    for file in files:
        text = file.read_text()
        assert [digests[name, tag] for name, tag, _ in pin_images.references(text)] == [
            digest for _, _, digest in pin_images.references(text)
        ]
        assert re.sub(r"@sha256:[0-9a-f]{64}", "", text) == before[file], "nothing else is changed"
    dockerfile = files[0].read_text()
    base = re.findall(r"^FROM (\S+)(?: AS build)?$", dockerfile, re.MULTILINE)
    assert len(base) == 2 and len(set(base)) == 1 and "@sha256:" in base[0]
    assert "image: strandline:0.1.0\n" in files[1].read_text(), "our own image is in no registry"
    assert set(registry.scopes) == {f"repository:{repository(name)}:pull" for name, _ in names}


@pytest.mark.guarantee("G795")
def test_a_second_run_follows_a_tag_that_moved_and_the_check_finds_it(
    registry: Registry, files: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, tag in images(files):
        registry.add(repository(name), tag)
    before = [file.read_text() for file in files]
    assert run(registry, files, "--check") == 1, "no digest, or that of another registry"
    assert [file.read_text() for file in files] == before, "a check changes no file"
    assert run(registry, files) == 0
    assert run(registry, files, "--check") == 0
    moved = registry.add("library/postgres", "17.7-bookworm")
    capsys.readouterr()
    assert run(registry, files, "--check") == 1
    assert "docker-compose.yml: postgres:17.7-bookworm sha256:" in capsys.readouterr().out
    assert run(registry, files) == 0
    assert files[1].read_text().count(f"postgres:17.7-bookworm@{moved}") == 2


def test_a_registry_without_tokens_is_read_too(registry: Registry, files: list[Path]) -> None:
    registry.requires_token = False
    for name, tag in images(files):
        registry.add(repository(name), tag)
    assert run(registry, files) == 0 and registry.scopes == []


@pytest.mark.guarantee("G795")
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            "a tag is missing",
            r"kibana:\S+: \S+/v2/library/kibana/manifests/\S+ answered 404; check the name and the tag",
        ),
        ("another digest", r"says that the digest is sha256:0{64}, but its content has sha256:"),
        (
            "away",
            r"can't be reached .*; run this on a machine that reaches the registry, or pass a mirror with --registry URL",
        ),
    ],
)
def test_if_one_tag_can_not_be_resolved_no_file_is_changed(
    registry: Registry, files: list[Path], capsys: pytest.CaptureFixture[str], fault: str, said: str
) -> None:
    for name, tag in images(files):
        if fault != "a tag is missing" or name != "kibana":
            registry.add(repository(name), tag)
    if fault == "another digest":
        registry.header = f"sha256:{'0' * 64}"
    if fault == "away":
        registry.close()
    before = [file.read_text() for file in files]
    assert run(registry, files) == 2
    assert re.search(f"no file was changed: .*{said}", capsys.readouterr().err)
    assert [file.read_text() for file in files] == before


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("python", ("registry-1.docker.io", "library/python")),
        ("apache/kafka", ("registry-1.docker.io", "apache/kafka")),
        ("registry.example:5000/team/base", ("registry.example:5000", "team/base")),
        ("ghcr.io/team/base", ("ghcr.io", "team/base")),
    ],
)
def test_a_short_name_is_one_of_dockers_registry(name: str, place: tuple[str, str]) -> None:
    assert pin_images._place(name) == place
    assert pin_images.references(f"FROM --platform=linux/amd64 {name}:1.2 AS a\n") == [(name, "1.2", None)]


@pytest.mark.guarantee(
    "G796",
    "Each package that the image or `make` installs is checked against its hash, also setuptools, which builds the "
    "package.",
    promise="a-stack-keeps-its-data",
)
def test_setuptools_is_installed_by_its_hash_and_not_by_build_isolation() -> None:
    """Build isolation fetches what pyproject.toml names under `requires` without a hash."""
    lock = (ROOT / "requirements-build.lock").read_text()
    (pinned,) = re.findall(r"^setuptools==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", lock, re.MULTILINE)
    (required,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert Requirement(required).specifier.contains(pinned), "the build accepts the version of the lock file"
    assert f"\nsetuptools=={pinned} " in (ROOT / "requirements-dev.lock").read_text(), "one version in an environment"
    for name in ("Dockerfile", "scripts/make-environment"):
        installs = re.findall(r"pip\"? install .*", (ROOT / name).read_text())
        assert len(installs) == 3
        for install in installs:
            assert "--require-hashes" in install or "--no-deps --no-build-isolation" in install, f"{name}: {install}"
