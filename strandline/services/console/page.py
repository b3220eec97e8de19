"""Files of the console, as the control service serves them: one page, one script, one style sheet, one icon, and the editor.

The page has an ETag and is revalidated at each visit. It names the other files with a digest of their content, so browsers
cache them.
The script loads the editor without a digest when a view needs it, so the editor is revalidated, too.
All files are compressed once, when the process first needs them. They contain no data: the page requests data from
the REST API.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

INDEX = "index.html"
MEDIA_TYPES = MappingProxyType(
    {
        INDEX: "text/html; charset=utf-8",
        "app.js": "text/javascript; charset=utf-8",
        "editor.js": "text/javascript; charset=utf-8",
        "app.css": "text/css; charset=utf-8",
        "icon.svg": "image/svg+xml",
        "LICENSES.txt": "text/plain; charset=utf-8",
    }
)
"""File name -> media type."""
_SECURITY_HEADERS = MappingProxyType(
    {
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
)
_KEPT = "public, max-age=31536000, immutable"
_CHECKED = "no-cache"
_DIGEST_CHARACTERS = 16

RouteHandler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class PageFile:
    """A file of the console."""

    body: bytes
    compressed: bytes
    media_type: str
    digest: str


@cache
def page_files() -> dict[str, PageFile]:
    """Return all files by name. The page names the others with their digests."""
    built = files("strandline.services.console").joinpath("built")
    bodies = {name: built.joinpath(name).read_bytes() for name in MEDIA_TYPES}
    page = bodies[INDEX]
    for name, body in bodies.items():
        page = page.replace(f"/console/{name}".encode(), f"/console/{name}?v={_digest(body)}".encode())
    bodies[INDEX] = page
    return {
        name: PageFile(body, gzip.compress(body, 9, mtime=0), MEDIA_TYPES[name], _digest(body))
        for name, body in bodies.items()
    }


def content_security_policy(provider: str | None = None) -> str:
    """Return the policy of the page. `provider`: origin of the OIDC provider, the only other host to which the page may connect.

    Only files of this service are executed, and no code is compiled from strings. Lit names its templates `lit-html`.
    """
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'" + (f" {provider}" if provider else ""),
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types lit-html",
        )
    )


def page_routes(provider: str | None = None) -> list[tuple[str, RouteHandler]]:
    """Return the paths of the console with their handlers. `provider`: origin of the OIDC provider."""
    policy = content_security_policy(provider)

    async def show_page(request: Request) -> Response:
        return _answer(request, page_files()[INDEX], _CHECKED, policy)

    async def show_file(request: Request) -> Response:
        name = request.path_params["name"]
        found = page_files().get(name)
        if found is None or name == INDEX:
            raise HTTPException(404, f"the console has no file {name}; open / again")
        is_this_version = request.query_params.get("v") == found.digest
        return _answer(request, found, _KEPT if is_this_version else _CHECKED, policy)

    return [("/", show_page), ("/console/{name}", show_file)]


def _answer(request: Request, file: PageFile, caching: str, policy: str) -> Response:
    """Return the file. Status 304 if the browser has it."""
    headers = {
        "Content-Security-Policy": policy,
        **_SECURITY_HEADERS,
        "Cache-Control": caching,
        "Vary": "Accept-Encoding",
        "ETag": f'"{file.digest}"',
    }
    if file.digest in request.headers.get("if-none-match", ""):
        return Response(None, 304, headers)
    body = file.body
    if "gzip" in request.headers.get("accept-encoding", ""):
        body, headers = file.compressed, headers | {"Content-Encoding": "gzip"}
    return Response(body, 200, headers, file.media_type)


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:_DIGEST_CHARACTERS]
