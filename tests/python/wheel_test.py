"""The wheel: built from the sdist like `pip install .`, installed in an environment with torch
only, and used there.

wheel_test.py FOLDER builds in FOLDER. wheel_test.py FOLDER WHEEL tests a wheel of scripts/wheels.
"""

import contextlib
import email
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import unittest
import venv
import zipfile
from importlib import metadata

from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TORCH = pathlib.Path(os.environ["TORCH"])
FOLDER = pathlib.Path(sys.argv.pop(1))
GIVEN = pathlib.Path(sys.argv.pop(1)) if sys.argv[1:] and sys.argv[1].endswith(".whl") else None
VERSION, TORCH_VERSION = os.environ["VERSION"], os.environ["TORCH_VERSION"]
# Exist on every machine with torch.
SYSTEM = r"lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+)\.so\.\d+|ld-linux.*"


def run(*command, **environment):
    """With only the given parts of this environment."""
    # Pip did not compile torch's modules.
    environment.setdefault("PYTHONPYCACHEPREFIX", os.environ["PYTHONPYCACHEPREFIX"])
    return subprocess.run(command, env={"PATH": "/usr/bin:/bin", **environment}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=300)


def pip(*arguments, python=sys.executable):
    done = subprocess.run([python, "-m", "pip", "--no-input", "--disable-pip-version-check", *arguments],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-8000:]


def sdist(folder):
    """The result of `python -m build --sdist`, which needs only the build backend."""
    build = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, folder], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (file,) = folder.glob("*.tar.gz")
    return file


def dynamic(file):
    """(libraries that a program or library needs, the folders where it searches for them)"""
    said = run("readelf", "-d", file).stdout
    return re.findall(r"NEEDED.*\[(.*)\]", said), re.findall(r"(?:RUNPATH|RPATH).*\[(.*)\]", said)


def put(file, place):
    """Puts it there, without a copy if the disk is the same."""
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(os.path.realpath(file), place)
    except OSError:
        shutil.copy(file, place)


def with_what_it_needs(name, extras=("",), known=None):
    """The distribution with this name, and all its requirements."""
    known = {} if known is None else known
    known[name] = metadata.distribution(name)
    for line in known[name].requires or ():
        wanted = Requirement(line)
        asked = wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in extras)
        if asked and (wanted.name not in known or wanted.extras):
            with_what_it_needs(wanted.name, ("", *wanted.extras), known)
    return known.values()


def bare_root(root, wheels):
    """A file system with this Python, torch and the requirements of torch's wheel, the libraries of
    the system that these need, and the contents of `wheels` in /packages. Returns the place of its
    Python."""
    python, library = pathlib.Path(os.path.realpath(sys.executable)), pathlib.Path(sysconfig.get_path("stdlib"))
    for file in library.rglob("*"):
        if file.is_file() and not {"site-packages", "dist-packages", "test", "tkinter", "__pycache__"} & {*file.parts}:
            put(file, root / file.relative_to("/"))
    put(python, root / python.relative_to("/"))
    for distribution in with_what_it_needs("torch"):
        for file in distribution.files:
            if ".." not in file.parts and file.suffix not in {".pyc", ".h", ".hpp", ".cuh"}:
                put(distribution.locate_file(file), root / "packages" / file)
    for file in wheels.rglob("*"):
        if file.is_file() and wheels / "torch" not in file.parents:
            put(file, root / "packages" / file.relative_to(wheels))
    torchs = (root / "packages/torch/lib").glob("*.so*")
    said = run("ldd", python, root / "packages/starling/bin/starling", *torchs, *root.rglob("*.cpython-*.so")).stdout
    for library in {*re.findall(r"(?:=> |^\t)(/\S+) \(0x", said, re.MULTILINE)}:
        if not library.startswith(str(root)):
            put(library, root / library.removeprefix("/"))
    for folder in ("dev", "etc", "proc", "tmp"):
        (root / folder).mkdir(exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
    for name, minor in ("null", 3), ("urandom", 9):
        os.mknod(root / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
    return python


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        cls.sdist = sdist(FOLDER)
        cls.wheel = GIVEN or cls.built()

        # A fresh environment that sees torch in its place, and one with torch beside the package.
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

    @classmethod
    def built(cls):
        """The wheel of the sdist."""
        subprocess.run(["tar", "-C", FOLDER, "-xzf", cls.sdist], check=True)
        source = FOLDER / cls.sdist.name.removesuffix(".tar.gz")
        # The environment is beside the sources as here, with the same compiler and options: ccache
        # knows all of it from this build.
        python = pathlib.Path(sys.executable)
        if python.is_relative_to(ROOT):
            python = python.relative_to(ROOT)
            (source / python.parts[0]).symlink_to(ROOT / python.parts[0])
        pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", FOLDER,
            "--config-settings", f"build-dir={source}/build",
            "--config-settings", f"cmake.define.STARLING_WERROR={os.environ['WERROR']}", source, python=source / python)
        (wheel,) = FOLDER.glob("*.whl")
        return wheel

    def test_the_sdist_holds_what_git_does(self):
        with tarfile.open(self.sdist) as archive:
            held = {name.partition("/")[2] for name in archive.getnames()}
        known = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                               capture_output=True, text=True).stdout.split("\0")[:-1]
        known = {name for name in known if not name.startswith(".ci/") and name != ".venv"}
        self.assertEqual(held, known | {"PKG-INFO"})

    def test_the_wheel_holds_the_package_and_the_command_alone(self):
        with zipfile.ZipFile(self.wheel) as archive:
            # auditwheel names folders, too.
            names = {name for name in archive.namelist() if not name.endswith("/")}
            texts = {name: archive.read(name) for name in names}
        metadata = f"starling_dp-{VERSION}.dist-info"
        (extension,) = (name for name in names if name.endswith(".so"))
        self.assertRegex(extension, r"^starling/_C\.cpython-.*\.so$")
        modules = {f"starling/{file.name}" for file in (ROOT / "python/starling").iterdir() if file.is_file()}
        self.assertIn("starling/_C.pyi", modules)
        self.assertEqual(names, modules | {
            extension, "starling/_built_with.py", "starling/_scheme_options.py", "starling/bin/starling",
            f"starling_dp-{VERSION}.data/scripts/starling",
            f"{metadata}/METADATA", f"{metadata}/WHEEL", f"{metadata}/RECORD", f"{metadata}/licenses/LICENSE"})
        for name, text in texts.items():
            for folder in (ROOT, FOLDER, TORCH, TORCH.resolve()):
                self.assertNotIn(str(folder).encode(), text, name)
        self.assertLess(self.wheel.stat().st_size, 16e6)

    @unittest.skipUnless(GIVEN, "only scripts/wheels gives the tag")
    def test_its_name_says_where_it_runs(self):
        python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
        self.assertRegex(self.wheel.name,
                         rf"^starling_dp-{VERSION}-{python}-{python}-manylinux_2_\d+_{platform.machine()}\.whl$")

    def test_it_asks_for_the_torch_that_it_was_built_with(self):
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            wheels = email.message_from_bytes(archive.read(name))
        with tarfile.open(self.sdist) as archive:
            (member,) = (member for member in archive if member.name.endswith("/PKG-INFO"))
            sources = email.message_from_bytes(archive.extractfile(member).read())
        self.assertEqual(wheels.get_all("Requires-Dist"), [f"torch=={TORCH_VERSION}"])
        self.assertEqual(sources.get_all("Requires-Dist"), ["torch>=2.11"])

    def test_it_needs_torch_and_the_system_alone(self):
        torchs = {file.name for file in (TORCH / "lib").iterdir()}
        (extension,) = self.package.glob("_C*.so")
        for file, paths in ((extension, []), (self.package / "bin/starling", ["$ORIGIN/../../torch/lib"])):
            needed, looks_in = dynamic(file)
            self.assertIn("libtorch_cpu.so", needed)
            self.assertEqual([name for name in needed if name not in torchs and not re.fullmatch(SYSTEM, name)], [])
            self.assertEqual(looks_in, paths)
            # Statically linked libraries stay private.
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
        """together_test.py's three processes learn with every rule as C++ does, here with the
        wheel."""
        done = run(self.python, ROOT / "tests/python/together_test.py", "Together.test_learns_what_cpp_learns")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Ran 1 test", done.stderr)

    @unittest.skipUnless(os.geteuid() == 0, "chroot is root's")
    def test_runs_where_there_are_only_python_and_torch(self):
        root = FOLDER / "root"
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, root)
            python = bare_root(root, self.beside)
            tests = pathlib.Path("/tests/python")
            for file in ("python/together_test.py", "python/workers.py", "python/learning.py", "optim/golden_losses.json"):
                put(ROOT / "tests" / file, root / "tests" / file)

            # The loader's $ORIGIN is from /proc, which is mounted for this command alone: a test
            # that is killed leaves no mount behind.
            enter = 'mount -t proc proc "$0/proc" && exec /usr/sbin/chroot "$0" "$@"'

            def inside(*command):
                return run("unshare", "--mount", "sh", "-c", enter, root, python, *command,
                           PYTHONPATH="/packages", PYTHONPYCACHEPREFIX="/pycache")

            said = inside("/packages/bin/starling", "--version")
            self.assertEqual((said.returncode, said.stdout), (0, f"starling {VERSION}\n"), said.stderr)
            doctor = inside("/packages/bin/starling", "doctor", "--json")
            self.assertEqual(json.loads(doctor.stdout)["versions"]["torch"], TORCH_VERSION, doctor.stderr)
            done = inside(tests / "together_test.py", "Together.test_learns_what_cpp_learns")
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
        self.assertEqual(workers.returncode, 2)
        self.assertIn("/nowhere", workers.stderr)  # a worker of its own reached the data

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
    """python/command.py alone, with a program that reports how it was started."""

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
            # Away from the package's sources, which Python would see beside it.
            command = packages / "bin/starling"
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
        # No signal is ignored but those that this process was started with, such as SIGINT in the
        # background. Python adds two of its own. glibc's 32 and 33 no program can change.
        ours = re.search(r"^SigIgn:\s+(\S+)", pathlib.Path("/proc/self/status").read_text(), re.MULTILINE)[1]
        pythons = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
        allowed = int(ours, 16) & ~pythons | 0b11 << 31
        self.assertEqual(int(said[1].split()[1], 16) & ~allowed, 0)


if __name__ == "__main__":
    unittest.main()
