"""scripts/deps: its refusals, and its files and output with an apt-get of our own."""

import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEPS = ROOT / "scripts/deps"

# Downloads a package for every name, with its name in a header. Some headers are in places that
# only Debian's compiler searches.
APT_GET = r"""#!/bin/sh
while [ $# -gt 0 ]; do case $1 in -qq) shift ;; -o) shift 2 ;; *) break ;; esac; done
[ "$1" = download ] || exit "${UPDATE_FAILS:-0}"
shift
for name; do
  mkdir -p "$name/DEBIAN" "$name/usr/include/x86_64-linux-gnu/$name"
  printf 'Package: %s\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: none\n' "$name" >"$name/DEBIAN/control"
  touch "$name/usr/include/$name.h" "$name/usr/include/x86_64-linux-gnu/$name/here.h"
  dpkg-deb -b "$name" "$name.deb" >/dev/null && rm -r "$name"
done
"""


class Deps(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        apt_get = self.folder / "bin/apt-get"
        apt_get.parent.mkdir()
        apt_get.write_text(APT_GET)
        apt_get.chmod(0o755)

    def run_deps(self, *arguments, **environment):
        return subprocess.run([DEPS, *arguments], env={"PATH": f"{self.folder}/bin:{os.environ['PATH']}", **environment},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)

    def test_unpacks_what_the_list_names_and_says_what_cmake_needs(self):
        prefix = self.folder / "deps"
        (prefix / "apt").mkdir(parents=True)  # the user's
        done = self.run_deps("--prefix", prefix)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = done.stdout.split()
        self.assertIn(f"-DCMAKE_PREFIX_PATH={prefix}/usr", said)
        self.assertIn(f"-DCMAKE_CXX_FLAGS=-isystem{prefix}/usr/include", said)
        listed = {line.split()[0] for line in (ROOT / "scripts/packages.txt").read_text().splitlines() if "-dev " in line}
        self.assertIn("libssl-dev", listed)
        for name in listed - {"python3-dev"}:
            self.assertTrue((prefix / f"usr/include/{name}.h").is_file(), name)
            self.assertTrue((prefix / f"usr/include/{name}/here.h").is_file(), name)
        # Nothing of apt-get's remains.
        self.assertEqual(sorted(entry.name for entry in prefix.iterdir()), ["apt", "usr"])
        again = self.run_deps("--prefix", prefix)
        self.assertEqual((again.returncode, again.stdout), (0, done.stdout), again.stderr)

    def test_one_line_says_what_is_wrong(self):
        for arguments, environment, code, reason in (
                ((), {}, 2, "--prefix FOLDER"), (("--prefix",), {}, 2, "--prefix FOLDER"),
                (("--prefix", self.folder / "a b"), {}, 2, "must not contain a space"),
                (("--prefix", self.folder / "c"), {"UPDATE_FAILS": "100"}, 1, "check the network")):
            done = self.run_deps(*arguments, **environment)
            self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(reason, done.stderr)
        self.assertEqual(list((self.folder / "c").iterdir()), [])
