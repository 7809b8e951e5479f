"""A real browser that tells what a page did there; where none is installed, the test is skipped with the reason."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.async_api import BrowserContext, Page, async_playwright

# The first of them starts soonest: it has no windows to get ready.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, PROGRAMS)), None)
PATIENCE_MS = 60_000  # of a machine that has other things to do


@dataclass
class Watched:
    """A page, what it complained of, and every origin that it asked anything of."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    origins: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url))

    def _asked(self, url: str) -> None:
        parts = urlsplit(url)
        self.origins.add(f"{parts.scheme}://{parts.netloc}")


@contextlib.asynccontextmanager
async def open_browser(*options: str) -> AsyncIterator[BrowserContext]:
    """Chromium, started with further ``options``."""
    if CHROMIUM is None:
        pytest.skip(f"none of {', '.join(PROGRAMS)} is installed (make tools)")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", *options], timeout=PATIENCE_MS
        )
        context = await browser.new_context()
        context.set_default_timeout(PATIENCE_MS)
        yield context
        await browser.close()


@contextlib.asynccontextmanager
async def open_page(url: str) -> AsyncIterator[Watched]:
    """The page at ``url``, in a browser of its own."""
    async with open_browser() as context:
        watched = Watched(await context.new_page())
        await watched.page.goto(url)
        yield watched
