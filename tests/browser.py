"""Opens a page in headless Chromium."""

import pathlib
import re
import shutil
import subprocess
import unittest

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def open_page(page, profile, *flags):
    """(the page as it stands after loading, the messages of its console). `page`: a file, or an
    address at 127.0.0.1. `profile`: a folder for the browser's own files. Nothing else is reached on
    the network."""
    address = page if str(page).startswith("http://") else pathlib.Path(page).as_uri()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser:
        raise unittest.SkipTest("no Chromium is installed")
    opened = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
                             "--virtual-time-budget=5000", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                             f"--user-data-dir={profile}", "--enable-logging=stderr", *flags, "--dump-dom",
                             address],
                            capture_output=True, text=True, timeout=300)
    if opened.returncode or not opened.stdout:
        raise AssertionError(opened.stderr)
    return opened.stdout, re.findall(r"CONSOLE.*?\] (.*)", opened.stderr)
