"""Installs the build (its folder is in the environment variable BUILD) and uses it as another
project does: builds examples/ against the installation, and runs them with 3 workers. TORCH_DIR is
the torch of the build."""

import gzip
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/train"))
from runs import free_port  # noqa: E402

TORCH = pathlib.Path(os.environ["TORCH_DIR"])
PYTHON = TORCH.parents[3] / "bin/python"  # for a wheel's torch in a virtual environment
# The same every time: ccache knows files by their paths.
WORK = pathlib.Path(os.environ["BUILD"]) / "examples-test"
PREFIX = WORK / "prefix"
WORKERS = 3


def run(*command, **environment):
    return subprocess.run(command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def path_without_python():
    folder = WORK / "commands"
    folder.mkdir(exist_ok=True)
    for place in os.get_exec_path():
        for command in pathlib.Path(place).glob("*"):
            if "python" not in command.name and not (folder / command.name).is_symlink():
                (folder / command.name).symlink_to(command)
    return str(folder)


def write_images(folder):
    """Files in the format of Fashion-MNIST, 600 images and 100 more: in each class two other rows
    are bright."""
    folder.mkdir()
    for name, count in ("train", 600), ("t10k", 100):
        labels = bytes(i * 7 % 10 for i in range(count))
        pixels = bytes(200 * (y // 2 == labels[i]) + (31 * i + 17 * y + 13 * x * x) % 50
                       for i in range(count) for y in range(28) for x in range(28))
        with gzip.open(folder / f"{name}-images-idx3-ubyte.gz", "wb") as file:
            file.write(struct.pack(">IIII", 0x803, count, 28, 28) + pixels)
        with gzip.open(folder / f"{name}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(struct.pack(">II", 0x801, count) + labels)
    return folder


class Examples(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        shutil.rmtree(WORK, ignore_errors=True)
        done = run(os.environ["CMAKE"], "--install", os.environ["BUILD"], "--prefix", PREFIX)
        assert done.returncode == 0, done.stdout
        cls.path = path_without_python()
        cls.bare = WORK / "libtorch"
        cls.bare.mkdir()
        for folder in ("lib", "include", "share"):
            (cls.bare / folder).symlink_to(TORCH / folder)

    def configure(self, name, *arguments, code=0, **environment):
        """CMake's output, without its line breaks."""
        done = run(os.environ["CMAKE"], "-S", ROOT / "examples", "-B", WORK / name, *arguments, **environment)
        self.assertEqual(done.returncode, code, done.stdout)
        return " ".join(done.stdout.split())

    def build(self, name, target="all", **environment):
        done = run(os.environ["CMAKE"], "--build", WORK / name, "-j", "2", "--target", target, **environment)
        self.assertEqual(done.returncode, 0, done.stdout)

    def check_run_path(self, program, torch):
        folders = re.findall(r"(?:RUNPATH|RPATH)\).*\[(.*)\]", run("readelf", "-d", program).stdout)
        self.assertEqual([os.path.normpath(folder) for folder in folders], [str(torch / "lib")])

    def workers(self, *command):
        """Runs the program on 3 workers. Returns for each worker the numbers in each line that it
        prints after its name."""
        shared = {"WORLD_SIZE": str(WORKERS), "LOCAL_WORLD_SIZE": str(WORKERS), "MASTER_ADDR": "127.0.0.1",
                  "MASTER_PORT": str(free_port("127.0.0.1")), "OMP_NUM_THREADS": "1"}
        processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True,
                                      env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
                     for rank in range(WORKERS)]
        results = []
        try:
            for rank, process in enumerate(processes):
                output = process.communicate()[0]
                self.assertEqual(process.returncode, 0, output)
                lines = [line.removeprefix(f"worker {rank} of {WORKERS}") for line in output.splitlines()]
                results.append([[float(number) for number in re.findall(r"\d+\.\d+", line)] for line in lines])
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        return results

    def check_agreement(self, values, delta):
        self.assertEqual(len(values), WORKERS)
        self.assertLessEqual(max(values) - min(values), delta, values)

    def check_hello(self, program):
        losses = [loss for [[loss]] in self.workers(program)]
        self.check_agreement(losses, 1e-5)
        # 0.5 untrained; a worker alone cannot know the others' parts.
        self.assertLess(losses[0], 0.02)

    @unittest.skipUnless(PYTHON.exists(), "torch is not a wheel's")
    def test_all_with_torch_of_a_python(self):
        self.configure("wheel", f"-DCMAKE_PREFIX_PATH={PREFIX}", f"-DSTARLING_PYTHON={PYTHON}")
        self.build("wheel")
        self.check_run_path(WORK / "wheel/1-hello", TORCH)
        self.check_hello(WORK / "wheel/1-hello")
        self.check_image(WORK / "wheel/2-image")
        self.check_gan(WORK / "wheel/3-gan")

    def check_image(self, program):
        results = self.workers(program, write_images(WORK / "images"), "600")
        for epochs in results:
            self.assertLess(epochs[-1][0], epochs[0][0] / 2)  # loss
        accuracies = [epochs[-1][1] for epochs in results]
        self.check_agreement(accuracies, 0.011)  # one image of 100
        self.assertGreater(accuracies[0], 0.9)
        missing = run(program, WORK / "nowhere")
        self.assertEqual((missing.returncode, missing.stdout),
                         (1, f"{WORK}/nowhere/train-images-idx3-ubyte.gz: not there, or too short\n"))

    def check_gan(self, program):
        results = [numbers for [numbers] in self.workers(program)]
        for values in zip(*results, strict=True):
            self.check_agreement(values, 2e-4)
        off_circle, off_center = results[0]
        self.assertLess(off_circle, 0.2)  # about 0.9 untrained
        self.assertLess(off_center, 0.3)

    def test_hello_with_a_libtorch_archive_and_no_python(self):
        self.assertIsNone(shutil.which("python3", path=self.path))
        self.configure("bare", f"-DCMAKE_PREFIX_PATH={PREFIX};{self.bare}", PATH=self.path)
        self.build("bare", "1-hello", PATH=self.path)
        self.check_run_path(WORK / "bare/1-hello", self.bare)
        self.check_hello(WORK / "bare/1-hello")

    def test_installed_command_finds_torch(self):
        self.check_run_path(PREFIX / "bin/starling", TORCH)
        done = subprocess.run([PREFIX / "bin/starling", "--version"], env={}, capture_output=True, text=True)
        self.assertRegex(done.stdout, r"^starling \d+\.\d+\.\d+\n$")

    def test_unfit_torch_is_refused(self):
        version = re.search(r'PACKAGE_VERSION "(.*)"',
                            (TORCH / "share/cmake/Torch/TorchConfigVersion.cmake").read_text()).group(1)
        other = WORK / "other"
        (other / "lib").mkdir(parents=True)
        (other / "lib/libtorch_cpu.so").touch()
        (other / "share/cmake/Torch").mkdir(parents=True)
        (other / "share/cmake/Torch/TorchConfigVersion.cmake").write_text('set(PACKAGE_VERSION "1.2.3")\n')
        for torch, message in (
            ("", "torch was not found: pass -DSTARLING_TORCH_DIR=DIR with the folder that holds its lib/, include/ and "
                 "share/, or -DSTARLING_PYTHON=PYTHON with a python that has it"),
            (PREFIX, f"STARLING_TORCH_DIR={PREFIX} is not torch's folder: it must hold lib/libtorch_cpu.so and "
                     "share/cmake/Torch/TorchConfigVersion.cmake"),
            (other, f"{other} holds torch 1.2.3, but this Starling was built against torch {version}: name that one by "
                    "STARLING_TORCH_DIR or STARLING_PYTHON, or build Starling anew"),
        ):
            said = self.configure("refused", f"-DCMAKE_PREFIX_PATH={PREFIX}", f"-DSTARLING_TORCH_DIR={torch}", code=1,
                                  PATH=self.path)
            self.assertEqual(said.count("CMake Error"), 1, said)
            self.assertIn(message, said)
