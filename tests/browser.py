"""Opens a page in headless Chromium."""

import pathlib
import re
import shutil
import subprocess
import unittest

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def open_page(page, profile, *flags):
    """(the page as it stands after loading, the messages of its console). `profile`: a folder for
    the browser's own files. Nothing is reached on the network."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser:
        raise unittest.SkipTest("no Chromium is installed")
    opened = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
                             "--virtual-time-budget=5000", "--host-resolver-rules=MAP * ~NOTFOUND",
                             f"--user-data-dir={profile}", "--enable-logging=stderr", *flags, "--dump-dom",
                             pathlib.Path(page).as_uri()],
                            capture_output=True, text=True, timeout=300)
    if opened.returncode or not opened.stdout:
        raise AssertionError(opened.stderr)
    return opened.stdout, re.findall(r"CONSOLE.*?\] (.*)", opened.stderr)
