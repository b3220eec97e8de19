"""Debian's Chromium over the console, driven by Playwright. It collects what no view may cause: errors, reports of the content
security policy, requests that leave the host."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, Request, expect, sync_playwright

from tests.support.waiting import stretched

CHROMIUM = shutil.which("chromium")
AXE = Path(__file__).parents[2] / "console" / "tools" / "node_modules" / "axe-core" / "axe.min.js"
DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}
_WAIT_S = 15.0
_REPORTS_IN_PAGE = """
addEventListener("securitypolicyviolation", (event) =>
    console.error("CSP report: " + event.violatedDirective + " " + event.blockedURI));
"""


@dataclass
class Watched:
    """Actions of pages since the browser started."""

    errors: list[str] = field(default_factory=list)
    """Errors in the console of the browser, exceptions of the page, and reports of the content security policy."""
    elsewhere: list[str] = field(default_factory=list)
    """Requests to other hosts."""
    others: tuple[str, ...] = ()
    """Hosts to which the page may send requests, such as the OIDC provider."""
    expected: tuple[str, ...] = ()
    """Parts of errors that the test causes on purpose, such as the status of a request that is refused."""

    def note(self, error: str) -> None:
        if not any(part in error for part in self.expected):
            self.errors.append(error)


def within_ms(limit_s: float) -> float:
    """Return a limit in milliseconds for Playwright. It is `limit_s` on an idle machine."""
    return 1_000 * stretched(limit_s)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def violations(page: Page) -> list[tuple[str, list[str]]]:
    """Return the accessibility rules that the page breaks, each with its first elements. Needs AXE, which `make console`
    installs."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run().then((found) => found.violations)")
    return [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found]


def open_page(
    browser: Browser, url: str, watched: Watched, *, size: dict[str, int] = DESKTOP, theme: str = "light"
) -> tuple[BrowserContext, Page]:
    """Return a page of a new session of the browser, with nothing loaded yet. Close the context afterwards."""
    context = browser.new_context(
        base_url=url,
        viewport=size,  # type: ignore[arg-type]
        color_scheme=theme,  # type: ignore[arg-type]
        locale="en-US",
        timezone_id="Europe/Berlin",
        reduced_motion="reduce",
    )
    context.set_default_timeout(within_ms(_WAIT_S))
    expect.set_options(timeout=within_ms(_WAIT_S))
    context.add_init_script(_REPORTS_IN_PAGE)
    page = context.new_page()
    host = urlsplit(url).netloc

    def note_request(request: Request) -> None:
        if urlsplit(request.url).netloc not in (host, *watched.others) and not request.url.startswith(
            ("data:", "blob:")
        ):
            watched.elsewhere.append(request.url)

    page.on("console", lambda message: watched.note(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: watched.note(str(error)))
    page.on("request", note_request)
    return context, page
