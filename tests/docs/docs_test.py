"""The site builds offline, opens in a browser, and does not build with a broken link."""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from browser import open_page  # noqa: E402


def build(out, source=ROOT):
    return subprocess.run([sys.executable, ROOT / "scripts/docs", "--out", out, "--source", source,
                           "--starling", os.environ["STARLING"]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@unittest.skipUnless(importlib.util.find_spec("sphinx"), "requirements-docs.txt is not installed")
@unittest.skipUnless(shutil.which("doxygen"), "doxygen is not installed")
class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        built = build(cls.folder / "site")
        if built.returncode:
            raise AssertionError(built.stdout)
        cls.site = cls.folder / "site" / "site"

    def page(self, name):
        return re.sub(r"<[^>]+>", "", (self.site / name).read_text())

    def test_the_start_page_opens_in_a_browser(self):
        shown, _ = open_page(self.folder / "site" / "index.html", self.folder / "profile")
        self.assertIn("<h1>Starling", shown)
        self.assertIn("without a global all-reduce", shown)
        for page in ("start.html", "from-ddp.html", "choosing.html", "reference/cli.html"):
            self.assertIn(f'href="{page}"', shown)

    def test_nothing_is_loaded_from_elsewhere(self):
        for page in self.site.rglob("*.html"):
            for tag in re.findall(r"<(?:script|link|img)\b[^>]*>", page.read_text()):
                self.assertNotRegex(tag, r"(?:src|href)=\"(?:https?:)?//", page)

    def test_reference_is_generated(self):
        self.assertIn("starling checkpoint consensus", self.page("docs/reference/cli.html"))
        self.assertIn("block_bytes", self.page("docs/reference/recipe.html"))
        self.assertIn("save_consensus", self.page("docs/reference/python.html"))
        cpp = self.page("docs/reference/cpp.html")
        self.assertIn("class Optimizer : public torch::optim::Optimizer", cpp)
        self.assertIn("skip_not_finite", cpp)

    def test_what_is_broken_does_not_build(self):
        def broken(change):
            with tempfile.TemporaryDirectory() as folder:
                source = pathlib.Path(folder, "source")
                shutil.copytree(ROOT, source, ignore=lambda at, names: [
                    name for name in names if name.startswith((".", "build", "out"))])
                change(source)
                result = build(pathlib.Path(folder, "out"), source)
            self.assertNotEqual(result.returncode, 0, result.stdout)
            return result.stdout

        def append(name, text):
            def change(source):
                path = source / name
                path.write_text((path.read_text() if path.exists() else "") + text)
            return change

        self.assertIn("README.md: docs/no-such-page.md", broken(append("README.md", "\n[a](docs/no-such-page.md)\n")))

        def two(source):
            append("docs/start.md", "\n[a](wires.md#no-such-heading)\n")(source)
            append("docs/unlisted.md", "# Unlisted\n")(source)
        said = broken(two)
        self.assertIn("no-such-heading", said)
        self.assertRegex(said, r"unlisted\.md: WARNING: document isn't included in any toctree")


if __name__ == "__main__":
    unittest.main(verbosity=2)
