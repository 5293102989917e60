"""A headless Chromium for tests: the one that Playwright installs, or one of the system."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser; the test skips where there is none, saying so."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = _launch(driver, playwright.Error)
        try:
            yield browser
        finally:
            browser.close()


def _launch(driver: Any, error: type[Exception]) -> Any:
    # A container's root may not make the sandbox; the pages are our own.
    options = {"args": ["--no-sandbox"]}
    paths = [None, *filter(None, map(shutil.which, NAMES))]
    for path in paths:
        try:
            return driver.chromium.launch(executable_path=path, **options)
        except error:
            continue
    pytest.skip("no Chromium: `playwright install chromium`, or install one on the system")
