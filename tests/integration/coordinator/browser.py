"""A headless Chromium, if this machine has one."""

import contextlib
import os
import shutil

import pytest

WHERE = ("chromium", "chromium-browser", "google-chrome")


@contextlib.contextmanager
def chromium():
    """Starts the browser of this machine; skips the test where there is none."""
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `dev`)")
    path = os.environ.get("FARSTEP_CHROMIUM") or next(filter(None, map(shutil.which, WHERE)), None)
    if path is None:
        pytest.skip(f"none of {', '.join(WHERE)} is installed; FARSTEP_CHROMIUM names another")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
