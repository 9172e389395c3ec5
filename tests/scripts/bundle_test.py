"""scripts/bundle: the packed programs run in another folder, with nothing of this one but torch."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUNDLE = ROOT / "scripts/bundle"
BUILD = sys.argv.pop(1)
# By scripts/release.
GIVEN = pathlib.Path(sys.argv.pop(1)) if sys.argv[1:] and sys.argv[1].endswith(".tar.xz") else None
TORCH = os.environ["TORCH"]
PYTHON = os.environ.get("PYTHON")  # with torch, if the Python module and bench-cuda are built


def run(*command, **environment):
    return subprocess.run(command, env={"PATH": "/usr/bin:/bin", **environment}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)


class Bundle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        file = GIVEN or cls.folder / "bundle.tar.xz"
        if not GIVEN:
            done = subprocess.run([BUNDLE, "--build", BUILD, file], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        cls.size = file.stat().st_size
        subprocess.run(["tar", "-C", cls.folder, "-xJf", file], check=True)
        (cls.tree,) = cls.folder.glob("starling-*/")

    def test_it_is_small(self):
        self.assertLess(self.size, 64e6)

    def test_programs_run_with_torch_named_or_found(self):
        doctor = run(self.tree / "build/bin/starling", "doctor", "--json", STARLING_TORCH_DIR=TORCH)
        self.assertEqual(doctor.returncode, 0, doctor.stderr)
        self.assertEqual(*(json.loads(doctor.stdout)["versions"][name] for name in ("torch", "torch_headers")))
        python = self.folder / "python3"
        python.write_text(f"#!/bin/sh\necho {TORCH}\n")  # pretends to have torch
        python.chmod(0o755)
        self.assertEqual(run(self.tree / "build/bin/starling", "--version", PYTHON=str(python)).returncode, 0)

    def test_the_command_starts_workers_of_its_own(self):
        done = run(self.tree / "build/bin/starling", "train", self.tree / "recipes/fashion-mnist.toml", "--workers", "2",
                   "--data.dir", "/nowhere", "--out", self.folder / "out", STARLING_TORCH_DIR=TORCH)
        self.assertEqual(done.returncode, 2)
        self.assertIn("/nowhere", done.stderr)  # a worker reached the data

    def test_nothing_but_torch_and_the_system_is_missing(self):
        for program in [*(self.tree / "build/libexec").iterdir(), *self.tree.glob("build/python/starling/_C.*.so")]:
            libraries = run("ldd", program, LD_LIBRARY_PATH=f"{TORCH}/lib:{self.tree}/build/lib")
            self.assertNotIn("not found", libraries.stdout, program.name)
            self.assertNotIn(BUILD, libraries.stdout, program.name)
            self.assertNotIn("PATH", run("readelf", "-d", program).stdout, program.name)

    def test_its_tests_run(self):
        done = run(self.tree / "build/check", "--gtest_filter=Golden*:*KilledProcess*:Crc32c*", STARLING_TORCH_DIR=TORCH)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("all tests passed", done.stdout)

    @unittest.skipUnless(PYTHON, "the Python module or bench-cuda is not built")
    def test_the_checks_of_a_gpu_run(self):
        out = self.folder / "gpu-check"
        done = run(PYTHON, self.tree / "scripts/gpu-check", "--mock", "--only", "update,kill", "--out", out)
        said = (out / "gpu-check.json").read_text()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + said)
        self.assertEqual([check["status"] for check in json.loads(said)["checks"]], ["passed"] * 3)

    def test_without_torch_one_line_says_what_to_do(self):
        done = run(self.tree / "build/bin/starling", "--version", STARLING_TORCH_DIR="/nowhere")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("set STARLING_TORCH_DIR", done.stderr)


class Refusals(unittest.TestCase):
    def test_one_line_says_what_is_allowed(self):
        for arguments, code, reason in ((("--nonsense",), 2, "unknown option '--nonsense'"),
                                        (("--build", "/nowhere"), 1, "there is no /nowhere/bin/starling")):
            done = run(BUNDLE, *arguments)
            self.assertEqual((done.returncode, done.stdout), (code, ""))
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(reason, done.stderr)


if __name__ == "__main__":
    unittest.main()
