"""scripts/release: one folder with every artifact, its checksums and its SBOM, and the refusals.
The programs that build and test are stand-ins."""

import json
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WHEELS = ("starling_dp-9.8.7-cp311-cp311-manylinux_2_35_x86_64.whl",
          "starling_dp-9.8.7-cp313-cp313-manylinux_2_35_x86_64.whl")
SOURCES = "starling_dp-9.8.7.tar.gz"
BUNDLE = f"starling-9.8.7-{platform.machine()}.tar.xz"
SBOM = "starling-9.8.7.cdx.json"


class Release(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        self.file("CMakeLists.txt", "project(starling VERSION 9.8.7 LANGUAGES CXX)\n")
        self.file("build/bin/starling", "")
        self.file("build/CMakeCache.txt", f"STARLING_TORCH_DIR:PATH={self.folder}/torch\n")
        self.file("torch/share/cmake/Torch/TorchConfigVersion.cmake", 'set(PACKAGE_VERSION "2.3.4")\n')
        self.file("scripts/bundle", '#!/bin/sh\necho "programs of $2" >"$3"\n').chmod(0o755)
        self.file("tests/scripts/bundle_test.py",
                  "import pathlib, sys\nsys.exit(pathlib.Path('fails').exists())\n")
        for name in ("release", "packages.txt"):
            shutil.copy(ROOT / "scripts" / name, self.folder / "scripts")
        for name in (*WHEELS, SOURCES):
            self.file(f"out/wheels/{name}", name)

    def file(self, name, text):
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def run_it(self):
        return subprocess.run([sys.executable, "-B", "scripts/release"], cwd=self.folder,
                              capture_output=True, text=True)

    def refusal(self):
        done = self.run_it()
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertFalse((self.folder / "out/release/SHA256SUMS").exists())
        return done.stderr

    def test_everything_is_in_one_folder(self):
        done = self.run_it()
        self.assertEqual(done.returncode, 0, done.stderr)
        out = self.folder / "out/release"
        listed = [BUNDLE, *WHEELS, SOURCES, SBOM]
        self.assertEqual({file.name for file in out.iterdir()}, {*listed, "SHA256SUMS"})
        checked = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=out,
                                 capture_output=True, text=True)
        self.assertEqual(checked.stdout.splitlines(), [f"{name}: OK" for name in listed])
        parts = json.loads((out / SBOM).read_text())
        self.assertEqual((parts["bomFormat"], parts["specVersion"]), ("CycloneDX", "1.6"))
        versions = {part["name"]: part.get("version") for part in parts["components"]}
        self.assertEqual(versions["torch"], "2.3.4")
        openssl = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "libssl-dev"],
                                 capture_output=True, text=True)
        self.assertEqual(versions["libssl-dev"], openssl.stdout)
        self.assertNotIn("cmake", versions)
        self.assertLessEqual({*WHEELS, SOURCES, BUNDLE}, set(versions))

    def test_what_is_missing_or_fails_is_named(self):
        self.file("fails", "")
        self.assertIn(f"{BUNDLE} has failed its tests", self.refusal())
        (self.folder / "out/wheels" / SOURCES).rename(self.folder / "out/wheels/starling_dp-9.8.6.tar.gz")
        self.assertIn("starling_dp-9.8.6.tar.gz is not of version 9.8.7: run 'make wheel'", self.refusal())
        shutil.rmtree(self.folder / "out/wheels")
        self.assertIn("there are no wheels in out/wheels", self.refusal())


if __name__ == "__main__":
    unittest.main()
