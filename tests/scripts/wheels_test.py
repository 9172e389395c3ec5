"""scripts/wheels: one wheel for each Python that is named, its refusals, and its files, with
Pythons of our own that build nothing. tests/python/wheel_test.py tests a real wheel."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# A Python whose version is in a file beside it. Tools make files of the names that the real ones
# make. It notes what it was asked to build and to test.
PYTHON = r"""#!/bin/sh
here=$(dirname "$0")
version=$(cat "$here/version")
tag=cp$(echo "$version" | tr -d .)
after() {  # after OPTION ARGUMENT...: the argument behind it
  wanted=$1
  shift
  while [ "$1" != "$wanted" ]; do shift; done
  echo "$2"
}
case "$*" in
  *version_info*) echo "$version" ;;
  *find_spec*) echo "$here/torch" ;;
  *build_sdist*)
    mkdir "$3/starling_dp-9.8.7"
    tar -C "$3" -czf "$3/starling_dp-9.8.7.tar.gz" --remove-files starling_dp-9.8.7 ;;
  *"pip wheel"*)
    to=$(after --wheel-dir "$@")
    echo "build $version $*" >>"$LOG"
    mkdir -p "$to" && touch "$to/starling_dp-9.8.7-$tag-$tag-linux.whl" ;;
  *"auditwheel repair"*)
    to=$(after --wheel-dir "$@")
    mkdir -p "$to" && truncate -s "${SIZE:-1000}" "$to/starling_dp-9.8.7-$tag-$tag-manylinux.whl" ;;
  *wheel_test.py*)
    echo "test $version $VERSION $TORCH_VERSION $(basename "$4")" >>"$LOG"
    [ "$version" != "$FAILS" ] ;;
esac
"""
VERSION_FILE = 'set(PACKAGE_VERSION "2.3.4")\n'


class Wheels(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        (self.folder / "scripts").mkdir()
        shutil.copy(ROOT / "scripts/wheels", self.folder / "scripts")
        (self.folder / "CMakeLists.txt").write_text("project(starling VERSION 9.8.7 LANGUAGES CXX)\n")
        self.script("scripts/dev-tools", '#!/bin/sh\necho "tools $*" >>"$LOG"\n')
        # Makes an environment with the version of PYTHON.
        self.script("scripts/bootstrap", '#!/bin/sh\ncp -r "$(dirname "$(command -v "$PYTHON")")/.." "$2"\n'
                    'mv "$2/bin/$(basename "$PYTHON")" "$2/bin/python"\n')
        self.python(".venv/bin/python", "3.11")
        self.python("other/bin/python3.13", "3.13")

    def script(self, name, text):
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    def python(self, name, version):
        self.script(name, PYTHON)
        folder = (self.folder / name).parent
        (folder / "version").write_text(version)
        (folder / "torch/share/cmake/Torch").mkdir(parents=True)
        (folder / "torch/share/cmake/Torch/TorchConfigVersion.cmake").write_text(VERSION_FILE)

    def wheels(self, *arguments, **environment):
        return subprocess.run([self.folder / "scripts/wheels", *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=120,
                              env={"PATH": f"{self.folder}/other/bin:{os.environ['PATH']}", "LOG": str(self.folder / "log"),
                                   "FAILS": "none", **environment})

    def log(self, what):
        lines = (self.folder / "log").read_text().splitlines()
        return [line for line in lines if line.startswith(what)]

    def made(self):
        return sorted(file.name for file in (self.folder / "out/wheels").iterdir())

    def test_one_for_each_python(self):
        done = self.wheels("3.11", "3.13")
        self.assertEqual(done.returncode, 0, done.stderr)
        names = [f"starling_dp-9.8.7-cp{tag}-cp{tag}-manylinux.whl" for tag in ("311", "313")]
        self.assertEqual(self.made(), ["SHA256SUMS", *names, "starling_dp-9.8.7.tar.gz"])
        self.assertEqual(done.stdout.split(), self.made())
        checked = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=self.folder / "out/wheels",
                                 capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        self.assertEqual(self.log("tools"), ["tools requirements-wheel.txt .venv",
                                             "tools requirements-wheel.txt .venv-python-3.13"])
        self.assertEqual(self.log("test"), [f"test {version} 9.8.7 2.3.4 {name}"
                                            for version, name in zip(("3.11", "3.13"), names, strict=True)])
        for line in self.log("build"):  # from the same sources, by the same headers
            self.assertIn("/.venv/bin/torch", line)
            self.assertTrue(line.endswith("/starling_dp-9.8.7"), line)

    def test_without_a_name_the_environments_python(self):
        self.assertEqual(self.wheels().returncode, 0)
        self.assertEqual(len(self.log("test")), 1)

    def test_a_python_by_its_path(self):
        done = self.wheels(str(self.folder / "other/bin/python3.13"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line.split()[1] for line in self.log("test")], ["3.13"])

    def test_a_wheel_whose_tests_fail_is_not_kept(self):
        done = self.wheels("3.11", "3.13", FAILS="3.13")
        self.assertEqual(done.returncode, 1)
        self.assertIn("-cp313-manylinux.whl has failed its tests", done.stderr)
        self.assertNotIn("starling_dp-9.8.7-cp313-cp313-manylinux.whl", self.made())
        self.assertNotIn("SHA256SUMS", self.made())

    def test_one_line_says_what_is_wrong(self):
        for arguments, environment, code, reason in (
                (("--venv",), {}, 2, "--venv needs a folder"), (("--halp",), {}, 2, "'--halp'"),
                (("--venv", "/nowhere"), {}, 2, "'/nowhere' is not the name of a folder"),
                (("--venv", ".venv-2"), {}, 1, "there is no .venv-2: run 'make deps'"),
                (("3.99",), {}, 1, "python3.99 does not run: install it with its headers"),
                (("3.11",), {"SIZE": "30000000"}, 1, "has 30000000 bytes: less than 30000000 are allowed")):
            done = self.wheels(*arguments, **environment)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(reason, done.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
