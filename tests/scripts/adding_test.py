"""CONTRIBUTING.md says which files a new scheme and a new topology touch. This test adds a toy of
each (adding/) to a copy of the sources, builds the copy, and uses both.

adding_test.py FOLDER copies to FOLDER and builds there. ccache knows all unchanged sources from the
build that runs the test.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOYS = ROOT / "tests/scripts/adding"
FOLDER = pathlib.Path(sys.argv.pop(1))
SOURCE = FOLDER / "source"
BUILD = SOURCE / "build"
sys.path.insert(0, str(ROOT / "tests/train"))
from runs import environment, write_images  # noqa: E402

WORKERS = 3


def run(*command, code=0):
    done = subprocess.run(command, cwd=SOURCE, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == code, f"{command} ended with {done.returncode}:\n{done.stdout[-8000:]}{done.stderr[-8000:]}"
    return done.stdout if code == 0 else done.stderr


def git(*arguments):
    return run("git", "-c", "user.name=adding_test", "-c", "user.email=none", *arguments)


def commit():
    """Commits all changes of the copy."""
    git("add", "--all")
    git("commit", "--quiet", "--message", "a step")


def changed():
    """The added and removed lines of each changed file. Prints `git diff --stat`, and commits."""
    git("add", "--all")
    print(git("diff", "--cached", "--stat"), flush=True)
    rows = [line.split("\t") for line in git("diff", "--cached", "--numstat").splitlines()]
    commit()
    return {path: (int(added), int(removed)) for added, removed, path in rows}


def add_word(path, word, after):
    """One more line of the list in a CMakeLists.txt."""
    text = (SOURCE / path).read_text()
    assert text.count(f"\n  {after}\n") == 1, path
    (SOURCE / path).write_text(text.replace(f"\n  {after}\n", f"\n  {after}\n  {word}\n"))


def append(path, toy):
    with open(SOURCE / path, "a") as file:
        file.write((TOYS / toy).read_text())


def lines(toy):
    return (TOYS / toy).read_text().count("\n")


class Adding(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(FOLDER, ignore_errors=True)
        SOURCE.mkdir(parents=True)
        known = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                               capture_output=True, text=True).stdout.split("\0")[:-1]
        for name in known:
            if (ROOT / name).is_file():
                (SOURCE / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, SOURCE / name)
        # Beside the sources as here: the same options of the compiler.
        python = pathlib.Path(sys.executable)
        if python.is_relative_to(ROOT):
            python = python.relative_to(ROOT)
            (SOURCE / python.parts[0]).symlink_to(ROOT / python.parts[0])
        git("init", "--quiet")
        commit()

        shutil.copy(TOYS / "toy.cpp", SOURCE / "starling/optim/schemes/toy.cpp")
        add_word("starling/optim/CMakeLists.txt", "toy", after="atc")
        tests = "tests/optim/scheme_equations_test.cpp"
        entry = '    {"all-reduce", {.step = adapt_alone, .gradients = average_gradients}},\n'
        text = (SOURCE / tests).read_text()
        assert text.count(entry) == 1
        (SOURCE / tests).write_text(text.replace(entry, entry + '    {"toy", {.elsewhere = "Toy.IsItsEquation"}},\n'))
        append(tests, "toy_test.cpp")
        cls.scheme = changed()

        shutil.copy(TOYS / "toy_line.cpp", SOURCE / "starling/topology/toy_line.cpp")
        add_word("starling/topology/CMakeLists.txt", "toy_line", after="torus")
        tests = "tests/topology/schedules_test.cpp"
        text = (SOURCE / tests).read_text()
        (SOURCE / tests).write_text(text.replace('"torus", "erdos-renyi"', '"torus", "toy-line", "erdos-renyi"'))
        append(tests, "toy_line_test.cpp")
        cls.topology = changed()

        run("cmake", "--log-level=NOTICE", "-G", "Ninja", "-S", SOURCE, "-B", BUILD, f"-DSTARLING_PYTHON={SOURCE / python}",
            f"-DSTARLING_WERROR={os.environ['WERROR']}", "-DSTARLING_BENCHMARKS=OFF")
        run("cmake", "--build", BUILD, "-j", os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2"),
            "--target", "starling-cli", "optimizer_test", "topology_test")
        cls.command = BUILD / "bin/starling"
        run("scripts/schemes", "--starling", cls.command)
        run("scripts/topologies", "--starling", cls.command)
        cls.written = changed()

    def test_a_scheme_is_one_file_one_word_and_one_test(self):
        self.assertEqual(self.scheme, {"starling/optim/schemes/toy.cpp": (lines("toy.cpp"), 0),
                                       "starling/optim/CMakeLists.txt": (1, 0),
                                       "tests/optim/scheme_equations_test.cpp": (lines("toy_test.cpp") + 1, 0)})

    def test_a_topology_is_one_file_one_word_and_one_test(self):
        self.assertEqual(self.topology, {"starling/topology/toy_line.cpp": (lines("toy_line.cpp"), 0),
                                         "starling/topology/CMakeLists.txt": (1, 0),
                                         "tests/topology/schedules_test.cpp": (lines("toy_line_test.cpp") + 1, 1)})

    def test_the_documents_are_written_by_scripts(self):
        self.assertEqual(set(self.written), {"README.md", "docs/schemes.md", "docs/topologies.md",
                                             "docs/topologies/toy-line.svg"})
        # README names the schemes of an exchange in one row of its table: that row is replaced.
        self.assertEqual({path: removed for path, (_, removed) in self.written.items() if removed}, {"README.md": 1})

    def test_the_command_describes_them(self):
        self.assertIn("stride: whole number, at least 1 and at most 1000, default 1", run(self.command, "schemes", "toy"))
        self.assertIn("toy-line ", run(self.command, "topology", "--list"))
        self.assertIn("did you mean toy?", run(self.command, "schemes", "toyy", code=2))

    def test_workers_train_with_them(self):
        with tempfile.TemporaryDirectory() as folder:
            data = pathlib.Path(folder)
            write_images(data, 240, 60)
            recipe = data / "recipe.toml"
            recipe.write_text(f'[run]\nsteps = 6\n[data]\ndir = "{data}"\n[model]\nwidth = 8\n[train]\nbatch = 8\n'
                              '[mixing]\nscheme = "toy"\nstride = 2\ntopology = "toy-line"\n')
            run(self.command, "train", recipe, "--workers", str(WORKERS), "--out", data / "out")
            summary = json.loads((data / "out/summary.json").read_text())
            self.assertEqual(summary["steps"], 6)
            self.assertIn("mixing.stride = 0: out of range",
                          run(self.command, "train", recipe, "--workers", "2", "--mixing.stride", "0", code=2))
            self.assertIn('is for scheme "toy", not "cta"',
                          run(self.command, "train", recipe, "--workers", "2", "--mixing.scheme", "cta", code=2))

    def test_the_tests_of_all_schemes_and_topologies_run_over_them(self):
        for program, tests, name in (("optimizer_test", "*/toy:Toy.*:SchemesTable.*", "GoesOnFromWhatWasSaved/toy"),
                                     ("topology_test", "Schedules.*:Properties.*", "Schedules.ToyLine")):
            self.assertIn(name, run(BUILD / "bin" / program, f"--gtest_filter={tests}"))
        for test in ("schemes", "topology"):
            done = subprocess.run([sys.executable, "-B", "-m", "unittest", f"{test}_test"], cwd=SOURCE / "tests/cli",
                                  env=environment(STARLING=str(self.command)), capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
