"""Pictures of the console for the documentation.

`python -m tests.support.console_pictures [light|dark|phone ...] [VIEW ...] [FOLDER]`

Reduce their colours afterwards: `pngquant --quality 60-90 --force --ext .png 96 docs/pictures/console-*.png`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
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
    "devices": ("#/streams/turbines/devices", "sl-devices td"),
    "record": ("#/records/turbines/2/402117", ".lives li"),
    "result-records": ("#/records/of/turbine-minute/q3bT0hT4ZWmMyYb1Bfh0sg", "sl-result-records td"),
    "windows": ("#/windows/turbine-health", ".windows td"),
    "activity": ("#/activity", ".events li"),
    "audits": ("#/audits", "sl-audits .backfills td"),
    "audit": ("#/audits/turbine-health", ".differences li"),
    "lookups": ("#/lookups", "sl-lookups td"),
    "lookup": ("#/lookups/sites?changes=2", "#changes .lives li"),
    "notices": ("#/notices", "sl-notices td"),
    "notice": ("#/notices/night", ".messages td"),
    "operation": ("#/operation", ".operation .badge"),
    "settings": ("#/settings", ".settings li"),
    "doctor": ("#/doctor", "sl-doctor .changes li"),
    "tokens": ("#/tokens", "sl-tokens .panel"),
    "begin": ("#/begin", "sl-begin textarea"),
    "edit": ("#/edit/jobs/turbine-health", ".cm-line"),
}
"""Name -> address, and the element of a complete view."""


def begin_with_an_example(page: Page) -> None:
    """Propose documents for the example of the view, and wait for the first results."""
    page.get_by_role("button", name="Use an example").click()
    page.get_by_role("button", name="Propose").click()
    page.locator(".results td").first.wait_for()
    page.locator(".cm-line").first.wait_for()


def change_a_window(page: Page) -> None:
    """Change the document in the editor, and wait for the plan and the preview."""
    text = "\n".join(page.locator(".cm-line").all_inner_texts())
    page.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text.replace("power / 3000", "power / 3200"))
    page.locator(".changes li").first.wait_for()


def create_a_token(page: Page) -> None:
    """Create a token, and wait for its secret."""
    page.get_by_label("Name").fill("dashboard")
    page.get_by_role("button", name="Create…").click()
    page.locator("dialog[open]").get_by_role("button", name="Create", exact=True).click()
    page.get_by_text("it can't be shown again").wait_for()


def choose_changed_settings(page: Page) -> None:
    """Show only the settings that differ from their default."""
    page.get_by_label("Only values that differ from their default").check()


STEPS: dict[str, Callable[[Page], None]] = {
    "settings": choose_changed_settings,
    "tokens": create_a_token,
    "begin": begin_with_an_example,
    "edit": change_a_window,
}
"""Name -> the actions that complete a view."""


MODES = {"light": (DESKTOP, "light", ""), "dark": (DESKTOP, "dark", "-dark"), "phone": (PHONE, "light", "-phone")}
"""Name -> size of the window, theme, end of the names of the pictures."""


def sign_in(page: Page, token: str) -> None:
    """Sign in at the address that the page shows."""
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")


def take(page: Page, name: str, folder: Path = FOLDER, *, is_whole: bool) -> Path:
    """Take a picture of the view that the page shows. `is_whole`: with all that is below the window."""
    page.wait_for_timeout(700)
    path = folder / f"console-{name}.png"
    page.screenshot(path=path, full_page=is_whole)
    return path


def main(modes: Sequence[str], names: Sequence[str], folder: Path = FOLDER) -> None:
    """Take these views in these modes."""
    watched = Watched()
    with tempfile.TemporaryDirectory() as data, chromium() as browser:
        with furnished_console(Path(data), tokens=True, step_min=10) as (url, tokens, _):
            for size, theme, suffix in (MODES[mode] for mode in modes):
                context, page = open_page(browser, url, watched, size=size, theme=theme)
                page.goto("/")
                sign_in(page, tokens["admin"])
                for name in names:
                    address, there = VIEWS[name]
                    page.goto(f"/{address}")
                    page.wait_for_selector(there)
                    STEPS.get(name, lambda _: None)(page)
                    print(take(page, f"{name}{suffix}", folder, is_whole=size is DESKTOP), flush=True)
                context.close()
    print(*watched.errors, *watched.elsewhere, sep="\n")


if __name__ == "__main__":
    chosen = [one for one in sys.argv[1:] if one in MODES] or list(MODES)
    named = [one for one in sys.argv[1:] if one in VIEWS] or list(VIEWS)
    main(chosen, named, next((Path(one) for one in sys.argv[1:] if one not in (*MODES, *VIEWS)), FOLDER))
