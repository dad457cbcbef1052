"""A headless browser that looks at a page, and says what the page did behind the reader's back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = [
    *("--no-sandbox", "--headless", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True, "device_scale_factor": 2}


@contextmanager
def launched() -> Iterator[Any]:
    """Chromium as the system has it; without one, or without Playwright, the test is skipped."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs Playwright to look at the page: pip install opendg[browser]"
    )
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("needs a browser to look at the page: install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


@dataclass
class Visit:
    """One look at a page. Whatever it complains of or asks for is kept."""

    tab: Any
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def texts(self, selector: str) -> list[str]:
        return [str(text).strip() for text in self.tab.locator(selector).all_inner_texts()]

    def table(self, protocol: str) -> Any:
        return self.tab.locator(f'#tables article[data-protocol="{protocol}"]')

    def column(self, key: str, protocol: str | None = None) -> list[float | None]:
        """The numbers of a column, from the top down, unrounded: of one leaderboard, or of all."""
        tables = self.tab.locator("#tables") if protocol is None else self.table(protocol)
        values = [cell.get_attribute("data-value") for cell in tables.locator(f'td[data-column="{key}"]').all()]
        return [None if value is None else float(value) for value in values]

    def now(self) -> dict[str, float]:
        """acc_k, acc_u and H beside the slider, unrounded."""
        cells = self.tab.locator("#now [data-now]").all()
        return {cell.get_attribute("data-now"): float(cell.get_attribute("data-value")) for cell in cells}

    def settle(self) -> None:
        """Wait until what was changed is drawn."""
        self.tab.evaluate("() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")

    def choose(self, selector: str, value: str) -> None:
        self.tab.select_option(selector, value)
        self.settle()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.tab.keyboard.press(key)
        self.settle()

    def focused(self) -> str:
        """What the keyboard is at, in a few words."""
        return str(
            self.tab.evaluate(
                "() => { const e = document.activeElement; return e.id || e.dataset.focus || e.textContent.trim(); }"
            )
        )


@contextmanager
def visit(browser: Any, page: Path, **options: Any) -> Iterator[Visit]:
    """Open a page; at the end it must have been silent and must have asked for nothing but itself."""
    context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
    context.set_default_timeout(10_000)
    seen = Visit(context.new_page())
    seen.tab.on("console", lambda message: seen.complaints.append(f"{message.type}: {message.text}"))
    seen.tab.on("pageerror", lambda error: seen.complaints.append(str(error)))
    seen.tab.on("request", lambda request: seen.asked.append(request.url))
    seen.tab.goto(page.as_uri())
    seen.settle()
    yield seen
    assert seen.complaints == []
    assert [address for address in seen.asked if not address.startswith("data:")] == [page.as_uri()]
    context.close()
