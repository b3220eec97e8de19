"""Resolver of image tags: `python scripts/pin_images.py [--check] [--registry URL] [FILE...]` writes the digest of each tag.

The files are the Dockerfile and the compose files. A reference `NAME:TAG` or `NAME:TAG@DIGEST` becomes `NAME:TAG@DIGEST` with the
digest that the registry has for the tag now. It is the digest of the list of all platforms, if the registry has one. All tags are
resolved before a file is written. With --check no file is written, and the exit code is 1 if a digest is missing or outdated.
See: OCI Distribution Specification 1.1, "Pulling manifests"; Docker Registry HTTP API V2, "Token Authentication".
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[1]
FILES = ("Dockerfile", "docker-compose.yml", "docker-compose.host.yml", "docker-compose.pages.yml")
OWN = "strandline"
"""The name of the image that compose builds: it is in no registry."""
DEFAULT_HOST = "registry-1.docker.io"
"""Registry of images whose name has no host."""
MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
TIMEOUT_S = 30.0
MANIFEST_BYTES_MAX = 4 * 1024 * 1024
"""Limit of the specification for a manifest."""
_REFERENCE = re.compile(
    r"^(?P<before>FROM (?:--\S+ )*|\s*image: )"
    r"(?P<name>[\w./-]+(?::\d+/[\w./-]+)?):(?P<tag>[\w.-]+)(?P<digest>@sha256:[0-9a-f]{64})?",
    re.MULTILINE,
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class PinningFailed(Exception):
    """A tag can't be resolved. The message names the image, the reason, and what to do."""


def references(text: str) -> list[tuple[str, str, str | None]]:
    """Return name, tag and digest of each image that a file takes from a registry."""
    found = (match for match in _REFERENCE.finditer(text) if match["name"] != OWN)
    return [(match["name"], match["tag"], match["digest"] and match["digest"][1:]) for match in found]


def with_digests(text: str, digests: dict[tuple[str, str], str]) -> str:
    """Return the text with the digest behind each tag."""

    def pinned(match: re.Match[str]) -> str:
        digest = digests.get((match["name"], match["tag"]))
        return match[0] if digest is None else f"{match['before']}{match['name']}:{match['tag']}@{digest}"

    return _REFERENCE.sub(pinned, text)


def resolve(client: httpx.Client, name: str, tag: str, registry: str | None) -> str:
    """Return the digest of the tag. Raises PinningFailed."""
    host, repository = _place(name)
    url = f"{registry or f'https://{host}'}/v2/{repository}/manifests/{tag}"
    headers = {"Accept": ", ".join(MANIFEST_TYPES)}
    try:
        response = client.get(url, headers=headers)
        if response.status_code == 401:
            headers["Authorization"] = f"Bearer {_token(client, response, repository)}"
            response = client.get(url, headers=headers)
    except httpx.HTTPError as error:
        raise PinningFailed(
            f"{name}:{tag}: {url} can't be reached ({error}); run this on a machine that reaches the registry, or pass a mirror "
            "with --registry URL"
        ) from error
    if response.status_code != 200:
        raise PinningFailed(f"{name}:{tag}: {url} answered {response.status_code}; check the name and the tag")
    digest = response.headers.get("Docker-Content-Digest", "")
    computed = f"sha256:{hashlib.sha256(response.content).hexdigest()}"
    if len(response.content) > MANIFEST_BYTES_MAX or (digest and digest != computed):
        raise PinningFailed(
            f"{name}:{tag}: {url} says that the digest is {digest}, but its content has {computed}; check the mirror or proxy"
        )
    return computed


def _place(name: str) -> tuple[str, str]:
    """Return the host of the registry and the repository there, by the rules of Docker for short names."""
    first, _, rest = name.partition("/")
    if rest and ("." in first or ":" in first or first == "localhost"):
        return first, rest
    return DEFAULT_HOST, name if rest else f"library/{name}"


def _token(client: httpx.Client, refusal: httpx.Response, repository: str) -> str:
    """Return a token for reading the repository, from the service that the refusal names. Raises PinningFailed, HTTPError."""
    challenge = refusal.headers.get("WWW-Authenticate", "")
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    if not challenge.lower().startswith("bearer ") or "realm" not in fields:
        raise PinningFailed(
            f"{refusal.url} asks for a login that this command doesn't have: {challenge!r}; pass a mirror"
        )
    asked = {"scope": fields.get("scope", f"repository:{repository}:pull")}
    if "service" in fields:
        asked["service"] = fields["service"]
    response = client.get(fields["realm"], params=asked)
    if response.status_code != 200:
        raise PinningFailed(
            f"{fields['realm']} gave no token for {repository}: {response.status_code}; try again later"
        )
    content = response.json()
    return str(content.get("token") or content.get("access_token"))


def pin(files: list[Path], registry: str | None, *, is_check: bool) -> int:
    """Resolve, then write. Return the exit code. Raises PinningFailed."""
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    named = {file: references(text) for file, text in texts.items()}
    digests: dict[tuple[str, str], str] = {}
    with httpx.Client(timeout=TIMEOUT_S, follow_redirects=True) as client:
        for name, tag in sorted({(name, tag) for found in named.values() for name, tag, _ in found}):
            digests[name, tag] = resolve(client, name, tag, registry)
    code = 0
    for file, found in named.items():
        for name, tag, digest in found:
            if digest != digests[name, tag]:
                code = 1 if is_check else 0
                print(f"{file.name}: {name}:{tag} {digest or 'without a digest'} -> {digests[name, tag]}")
        if not is_check and (text := with_digests(texts[file], digests)) != texts[file]:
            file.write_text(text, encoding="utf-8")
    return code


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="make pin-images", description="Write the digests of all images into the files."
    )
    parser.add_argument(
        "--check", action="store_true", help="only compare; exit code 1 if a digest is missing or another one"
    )
    parser.add_argument("--registry", help="URL of a mirror to query instead of the registry of each image")
    parser.add_argument("files", nargs="*", type=Path, default=[ROOT / name for name in FILES])
    given = parser.parse_args(arguments)
    try:
        return pin(given.files, given.registry, is_check=given.check)
    except PinningFailed as error:
        print(f"no file was changed: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
