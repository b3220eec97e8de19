"""Pictures of the console for the documentation: `python -m tests.support.console_pictures [FOLDER]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page

from tests.support.console import furnished_console
from tests.support.console_browser import DESKTOP, PHONE, Watched, chromium, open_page

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
VIEWS = {
    "home": ("#/", ".strip svg"),
    "job": ("#/jobs/turbine-health", "sl-graph svg"),
    "results": ("#/results/turbine-minute?value=load&range=6h", "sl-chart canvas"),
    "dead-letters": ("#/dead-letters/pump-pressure/60", ".bytes"),
    "streams": ("#/streams/turbines", ".fields"),
    "activity": ("#/activity", ".events li"),
}
"""Name -> address, and what is there when the view is complete."""


def take(page: Page, name: str, folder: Path) -> Path:
    """Take a picture of the view that the page shows, with all that is below the window."""
    page.wait_for_timeout(700)
    path = folder / f"console-{name}.png"
    page.screenshot(path=path, full_page=True)
    return path


def main(folder: Path) -> None:
    """Take each view in both themes, and in the width of a phone."""
    watched = Watched()
    with tempfile.TemporaryDirectory() as data, chromium() as browser:
        with furnished_console(Path(data), step_min=10) as (url, _, _api):
            for theme, size, suffix in (("light", DESKTOP, ""), ("dark", DESKTOP, "-dark"), ("light", PHONE, "-phone")):
                context, page = open_page(browser, url, watched, size=size, theme=theme)
                for name, (address, there) in VIEWS.items():
                    page.goto(f"/{address}")
                    page.wait_for_selector(there)
                    print(take(page, f"{name}{suffix}", folder), flush=True)
                context.close()
    print(*watched.errors, *watched.elsewhere, sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
