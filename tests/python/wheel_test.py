"""The wheel: built from the sdist as `pip install .` does, installed where there is nothing but torch, and used there.

wheel_test.py FOLDER builds in FOLDER, which is always the same, so that ccache knows what it has compiled before.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import venv
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TORCH = pathlib.Path(os.environ["TORCH"])
FOLDER = pathlib.Path(sys.argv.pop(1))
VERSION, TORCH_VERSION = os.environ["VERSION"], os.environ["TORCH_VERSION"]
SYSTEM = r"lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+)\.so\.\d+|ld-linux.*"  # where torch runs there are these


def run(*command, **environment):
    """With nothing of this environment but what is given."""
    environment.setdefault("PYTHONPYCACHEPREFIX", os.environ["PYTHONPYCACHEPREFIX"])  # pip did not compile torch's modules
    return subprocess.run(command, env={"PATH": "/usr/bin:/bin", **environment}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=300)


def pip(*arguments):
    done = subprocess.run([sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", *arguments],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-8000:]


def sdist(folder):
    """What `python -m build --sdist` makes, which needs nothing but the build backend."""
    build = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, folder], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (file,) = folder.glob("*.tar.gz")
    return file


def dynamic(file):
    """(libraries that a program or library needs, the folders where it looks for them)"""
    said = run("readelf", "-d", file).stdout
    return re.findall(r"NEEDED.*\[(.*)\]", said), re.findall(r"(?:RUNPATH|RPATH).*\[(.*)\]", said)


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        cls.sdist = sdist(FOLDER)
        subprocess.run(["tar", "-C", FOLDER, "-xzf", cls.sdist], check=True)
        source = FOLDER / cls.sdist.name.removesuffix(".tar.gz")
        pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", FOLDER,
            "--config-settings", f"build-dir={source}/build", source)
        (cls.wheel,) = FOLDER.glob("*.whl")

        # A fresh environment that sees torch where it lies, and one whose torch lies beside the package.
        venv.create(FOLDER / "venv", symlinks=True)
        cls.python = FOLDER / "venv/bin/python"
        pip("--python", cls.python, "install", "--no-deps", "--no-index", cls.wheel)
        (packages,) = (FOLDER / "venv/lib").glob("python3*/site-packages")
        (packages / "torch.pth").write_text(f"{TORCH.parent}\n")
        cls.package = packages / "starling"
        cls.command = FOLDER / "venv/bin/starling"
        cls.beside = FOLDER / "beside"
        pip("install", "--no-deps", "--no-index", "--target", cls.beside, cls.wheel)
        (cls.beside / "torch").symlink_to(TORCH)

    def test_the_sdist_holds_what_git_does(self):
        with tarfile.open(self.sdist) as archive:
            held = {name.partition("/")[2] for name in archive.getnames()}
        known = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                               capture_output=True, text=True).stdout.split("\0")[:-1]
        known = {name for name in known if not name.startswith(".ci/") and name != ".venv"}
        self.assertEqual(held, known | {"PKG-INFO"})

    def test_the_wheel_holds_the_package_and_the_command_alone(self):
        with zipfile.ZipFile(self.wheel) as archive:
            names = set(archive.namelist())
            texts = {name: archive.read(name) for name in names}
        metadata = f"starling_dp-{VERSION}.dist-info"
        (extension,) = (name for name in names if name.endswith(".so"))
        self.assertRegex(extension, r"^starling/_C\.cpython-.*\.so$")
        modules = {f"starling/{file.name}" for file in (ROOT / "python/starling").iterdir() if file.is_file()}
        self.assertIn("starling/_C.pyi", modules)
        self.assertEqual(names, modules | {
            extension, "starling/_built_with.py", "starling/bin/starling", f"starling_dp-{VERSION}.data/scripts/starling",
            f"{metadata}/METADATA", f"{metadata}/WHEEL", f"{metadata}/RECORD", f"{metadata}/licenses/LICENSE"})
        for name, text in texts.items():
            for folder in (ROOT, FOLDER, TORCH, TORCH.resolve()):
                self.assertNotIn(str(folder).encode(), text, name)
        self.assertLess(self.wheel.stat().st_size, 16e6)

    def test_it_needs_torch_and_the_system_alone(self):
        torchs = {file.name for file in (TORCH / "lib").iterdir()}
        (extension,) = self.package.glob("_C*.so")
        for file, paths in ((extension, []), (self.package / "bin/starling", ["$ORIGIN/../../torch/lib"])):
            needed, looks_in = dynamic(file)
            self.assertIn("libtorch_cpu.so", needed)
            self.assertEqual([name for name in needed if name not in torchs and not re.fullmatch(SYSTEM, name)], [])
            self.assertEqual(looks_in, paths)
            # What is linked statically is nobody else's.
            exported = run("nm", "-D", "--defined-only", file).stdout
            self.assertNotRegex(exported, r" (EVP_|CRYPTO_|inflate|crc32)")

    def test_is_imported(self):
        for python, environment in ((self.python, {}), (sys.executable, {"PYTHONPATH": str(self.beside)})):
            done = run(python, "-c", "import starling, torch; print(starling.__version__, starling.__file__)", **environment)
            self.assertEqual(done.returncode, 0, done.stderr)
            version, file = done.stdout.split()
            self.assertEqual(version, VERSION)
            self.assertTrue(file.startswith(str(FOLDER)), file)

    def test_trains(self):
        """optim_test.py's three processes learn with every rule what C++ does, here with the wheel."""
        done = run(self.python, ROOT / "tests/python/optim_test.py", "Together.test_learns_what_cpp_learns")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Ran 1 test", done.stderr)

    def test_the_command(self):
        for command, environment in ((self.command, {}),  # torch's folder is in torch.pth
                                     (self.beside / "bin/starling", {"PYTHONPATH": str(self.beside)}),
                                     (self.beside / "starling/bin/starling", {})):
            said = run(command, "--version", **environment)
            self.assertEqual((said.returncode, said.stdout), (0, f"starling {VERSION}\n"), said.stderr)
            doctor = run(command, "doctor", "--json", **environment)
            self.assertEqual(doctor.returncode, 0, doctor.stderr)
            versions = json.loads(doctor.stdout)["versions"]
            self.assertEqual((versions["torch"], versions["torch_headers"]), (TORCH_VERSION, TORCH_VERSION))
            wrong = run(command, "nonsense", **environment)
            self.assertEqual((wrong.returncode, wrong.stdout), (2, ""))
        workers = run(self.command, "train", ROOT / "recipes/fashion-mnist.toml", "--workers", "2",
                      "--data.dir", "/nowhere", "--out", FOLDER / "out")
        self.assertEqual(workers.returncode, 1)
        self.assertIn("/nowhere", workers.stderr)  # a worker of its own came as far as the data

    def test_another_torch_is_refused_with_what_to_do(self):
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder, "torch")
            other.mkdir()
            (other / "version.py").write_text("__version__ = '1.2.3+cpu'\n")
            (other / "__init__.py").write_text("from torch.version import __version__\n")
            reason = (f"starling was built with torch {TORCH_VERSION}, but torch 1.2.3 is installed: install "
                      f"torch=={TORCH_VERSION}, or build starling anew")
            imported = run(self.python, "-c", "import starling", PYTHONPATH=folder)
            self.assertEqual(imported.returncode, 1)
            self.assertIn(f"ImportError: {reason}", imported.stderr)
            command = run(self.command, "--version", PYTHONPATH=folder)
            self.assertEqual((command.returncode, command.stdout), (1, ""))
            self.assertIn(f"starling: error: {reason}", command.stderr)
            self.assertEqual(command.stderr.count("\n"), 1, command.stderr)

    def test_without_torch_one_line_says_so(self):
        (self.package.parent / "torch.pth").rename(FOLDER / "torch.pth")
        try:
            command = run(self.command, "--version")
        finally:
            (FOLDER / "torch.pth").rename(self.package.parent / "torch.pth")
        self.assertEqual((command.returncode, command.stdout), (1, ""))
        self.assertIn(f"has no package torch: install torch=={TORCH_VERSION} there", command.stderr)
        self.assertEqual(command.stderr.count("\n"), 1, command.stderr)


class Command(unittest.TestCase):
    """python/command.py alone, with a program that says how it was started."""

    def test_becomes_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            packages = pathlib.Path(folder)
            (packages / "starling/bin").mkdir(parents=True)
            (packages / "torch/lib").mkdir(parents=True)
            (packages / "torch/version.py").write_text("__version__ = '1.2.3'\n")
            for package in ("starling", "torch"):
                (packages / package / "__init__.py").touch()
            (packages / "starling/_built_with.py").write_text("torch = '1.2.3'\n")
            shutil.copy(ROOT / "python/starling/_torch_version.py", packages / "starling")
            command = packages / "bin/starling"  # away from the package's sources, which Python would see beside it
            command.parent.mkdir()
            shutil.copy(ROOT / "python/command.py", command)
            program = packages / "starling/bin/starling"
            program.write_text('#!/bin/sh\necho $$ "${LD_LIBRARY_PATH:-none}" "$@"\n'
                               'grep SigIgn /proc/$$/status\nkill -TERM $$\n')
            program.chmod(0o755)
            elsewhere = packages / "elsewhere/torch"
            for torch, libraries in ((packages / "torch", "none"), (elsewhere, f"{elsewhere}/lib")):
                if torch == elsewhere:
                    elsewhere.parent.mkdir()
                    (packages / "torch").rename(elsewhere)
                path = f"{packages}:{torch.parent}"
                process = subprocess.Popen([sys.executable, "-B", command, "a b", "c"],
                                           env={"PATH": "/usr/bin:/bin", "PYTHONPATH": path}, stdout=subprocess.PIPE,
                                           text=True)
                said = process.communicate(timeout=300)[0].splitlines()
                self.assertEqual(process.returncode, -15)  # the program's own end, by a signal
                self.assertEqual(said[0], f"{process.pid} {libraries} a b c")
                glibcs = 0b11 << 31  # 32 and 33: whoever started all this may ignore them, and no program can change it
        self.assertEqual(int(said[1].split()[1], 16) & ~glibcs, 0)  # no signal is ignored


if __name__ == "__main__":
    unittest.main()
