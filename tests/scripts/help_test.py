"""Every script explains itself: --help prints what it is for and ends with 0, from any folder. The
scripts that read a whole command line refuse a wrong one with 2 and a line that says what is
allowed."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDERS = (".ci", "scripts", "bench", "tests/faults")
WRONG = (".ci/run", "scripts/bootstrap", "scripts/bundle", "scripts/dev-tools", "scripts/format", "scripts/fresh-machine",
         "scripts/fuzz", "scripts/gpu-check", "scripts/lint", "scripts/pictures", "scripts/release", "scripts/sanitize",
         "scripts/schemes", "scripts/topologies", "scripts/try-slurm", "scripts/wheels")


def scripts():
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).iterdir()):
            if file.is_file() and os.access(file, os.X_OK) and file.read_bytes().startswith(b"#!"):
                yield file


def run(script, *arguments):
    language = [sys.executable] if b"python3" in script.read_bytes().split(b"\n")[0] else ["bash"]
    with tempfile.TemporaryDirectory() as elsewhere:
        return subprocess.run([*language, script, *arguments], cwd=elsewhere, stdin=subprocess.DEVNULL, timeout=120,
                              env={**os.environ, "COLUMNS": "100"}, capture_output=True, text=True)


class Help(unittest.TestCase):
    def test_every_script_has_it(self):
        all_of_them = list(scripts())
        self.assertGreater(len(all_of_them), 30)
        for script in all_of_them:
            with self.subTest(script.relative_to(ROOT)):
                done = run(script, "--help")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertGreater(len(done.stdout.split()), 8, done.stdout)
                self.assertLessEqual(max(map(len, done.stdout.splitlines())), 100, done.stdout)
                # An option that argparse lists has its meaning beside or below it.
                options = re.split(r"(?m)^options:$", done.stdout)[1:]
                bare = re.findall(r"(?m)^  -(?!.*  +\S).*$(?!\n {8,}\S)", "".join(options))
                self.assertEqual(bare, [])

    def test_a_wrong_command_line_is_refused(self):
        for name in WRONG:
            with self.subTest(name):
                done = run(ROOT / name, "--halp")
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("--halp", done.stderr)

    def test_scripts_ask_for_the_command_that_they_need(self):
        for name in ("docs", "schemes", "topologies"):
            done = run(ROOT / "scripts" / name, "--starling", "/nowhere/starling")
            self.assertEqual((done.returncode, done.stderr), (1, f"{name}: /nowhere/starling is not there: run `make`\n"))

    def test_the_site_takes_no_folder_of_other_files(self):
        with tempfile.TemporaryDirectory() as folder:
            mine = pathlib.Path(folder, "mine")
            mine.touch()
            done = run(ROOT / "scripts/docs", "--starling", sys.executable, "--out", folder)
            self.assertEqual((done.returncode, mine.exists()), (1, True))
            self.assertIn("is not empty, and holds no earlier site", done.stderr)

    def test_the_demo_says_which_data_cannot_be_fetched(self):
        with tempfile.TemporaryDirectory() as folder:  # no apt-get is on the PATH
            os.symlink(os.path.realpath(sys.executable), pathlib.Path(folder, "python3"))
            done = subprocess.run(
                [sys.executable, "-c", "import runpy; runpy.run_path('scripts/demo')['output_of']('scripts/fetch-english')"],
                cwd=ROOT, env={**os.environ, "PATH": folder, "STARLING_CACHE": folder}, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"\Afetch-english: .* cannot be fetched: .*\n"
                                      r"demo: .*/fetch-english ended with exit code 1\n\Z")
