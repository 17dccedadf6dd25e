"""Debian's Chromium for tests of the page: what went wrong in it, what is heard of it, what has the focus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
SCREENSHOTS = Path(__file__).parents[1] / "out" / "screenshots"
DESKTOP, PHONE = (1280, 900), (390, 844)
PATIENCE_MS = 60_000

_CONTROLS = {"button", "link", "checkbox", "combobox", "textbox", "progressbar", "group", "region", "navigation"}
_SEEN_FOCUS = """() => {
  const element = document.activeElement;
  const seen = element.matches("#file") ? document.querySelector("label[for=file]") : element;
  const style = getComputedStyle(seen);
  const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  return outlined || (element.matches("rect") && parseFloat(style.strokeWidth) >= 4);
}"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser; tests are skipped where it is missing."""
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is missing (sudo make debian)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class View:
    """A page in a window of its own, and what went wrong in it: errors of scripts, what its policy refused, dialogs."""

    page: Page
    wrong: list[str] = field(default_factory=list)

    def forgive(self, *statuses: str) -> None:
        """What the browser logs of replies with these statuses was to be."""
        refused = [f"the server responded with a status of {status}" for status in statuses]
        self.wrong[:] = [text for text in self.wrong if not any(part in text for part in refused)]

    def nameless(self) -> list[str]:
        """Controls and parts that a screen reader could not name."""
        session = self.page.context.new_cdp_session(self.page)
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
        session.detach()
        shown = [node for node in nodes if not node["ignored"] and node["role"]["value"] in _CONTROLS]
        assert shown
        return [str(node) for node in shown if not node.get("name", {}).get("value", "").strip()]

    def overflows(self) -> bool:
        """Whether the page is wider than its window."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))

    def focused(self) -> str:
        """The accessible name, or else the text, of what has the focus, which must be seen to have it."""
        assert self.page.evaluate(_SEEN_FOCUS), self.page.evaluate("document.activeElement.outerHTML")
        words = "document.activeElement.labels?.[0] ?? document.activeElement"
        named = f"({words}).ariaLabel || ({words}).innerText || ''"
        return str(self.page.evaluate(named)).strip()

    def tab_to(self, name: str) -> None:
        """Press Tab until this has the focus."""
        passed = []
        for _ in range(40):
            self.page.keyboard.press("Tab")
            passed.append(self.focused())
            if passed[-1] == name:
                return
        raise AssertionError(f"Tab does not come to {name!r}, only to {passed}")

    def shoot(self, name: str) -> None:
        """Keep a picture of the whole page."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.evaluate("scrollTo(0, 0)")
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


@contextmanager
def view(browser: Browser, url: str, size: tuple[int, int] = DESKTOP, *, dark: bool = False) -> Iterator[View]:
    """A window of this size on a page; nothing may have gone wrong in it by the end, but what the test took away."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light", locale="en-GB"
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    shown = View(page)

    def on_console(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            shown.wrong.append(message.text)

    def on_dialog(dialog: Dialog) -> None:
        shown.wrong.append(dialog.message)
        dialog.dismiss()

    page.on("console", on_console)
    page.on("pageerror", lambda error: shown.wrong.append(str(error)))
    page.on("dialog", on_dialog)
    try:
        page.goto(url)
        yield shown
        assert shown.wrong == []
    finally:
        context.close()
