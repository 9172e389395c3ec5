"""Runs the examples of examples/python/ as users do: under torchrun, and the notebook by nbconvert.
Without network. The loops run in workers that have torch already, in the environment that torchrun
makes."""

import gzip
import itertools
import json
import os
import pathlib
import re
import runpy
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

import torch
import workers
from PIL import Image

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent.parent / "examples/python"
LIMIT = 240  # seconds: a hang is a failure


def run(folder, *command, **more):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "NO_COLOR": "1", **more}
    process = subprocess.Popen(
        [sys.executable, "-m", *map(str, command)], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)  # fmt: skip
    try:
        said = process.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # torchrun's workers too
        raise AssertionError(f"{command}: not done after {LIMIT} s:\n{process.communicate()[0]}") from None
    if process.returncode != 0:
        raise AssertionError(f"{command}: exit code {process.returncode}:\n{said}")
    return said


def torchrun(folder, *command):
    return run(folder, "torch.distributed.run", "--standalone", "--nproc-per-node", 2, *command)


class Examples(unittest.TestCase):
    def example(self, name):
        with tempfile.TemporaryDirectory() as folder:
            said = torchrun(folder, EXAMPLES / name)
            written = [file.name for file in pathlib.Path(folder).rglob("*.safetensors")]
        loss, distance = re.search(r"^average of 2: loss (\S+), distance (\S+)$", said, re.MULTILINE).groups()
        self.assertLess(float(loss), 1.5)  # log 24 = 3.2: nothing learned
        self.assertGreater(float(distance), 0)  # nothing averages the gradients
        return written

    def test_trainer(self):
        self.assertEqual(self.example("with_trainer.py"), ["model.safetensors"])

    def test_accelerate(self):
        self.assertEqual(self.example("with_accelerate.py"), ["model.safetensors"])

    def test_lightning(self):
        self.example("with_lightning.py")

    def test_frameworks_resume_from_their_own_checkpoints(self):
        for framework in ("trainer", "accelerate", "lightning"):
            with self.subTest(framework), tempfile.TemporaryDirectory() as folder:
                places = []
                for part in ("begin", "resume"):
                    said = torchrun(folder, pathlib.Path(__file__).parent / "resumes.py", framework, part)
                    for when in ("begins", "ends"):
                        # The same on both workers.
                        ranks, steps, rates = zip(*re.findall(rf"{when} rank (\d): step (\d+), lr (\S+)", said), strict=True)
                        self.assertEqual((sorted(ranks), len(set(steps)), len(set(rates))), (["0", "1"], 1, 1), said)
                        places.append((int(steps[0]), float(rates[0])))
                self.assertEqual([step for step, _ in places], [0, 16, 16, 32])
                self.assertEqual(places[2], places[1])
                rates = [rate for _, rate in places]
                self.assertTrue(rates[0] > rates[1] > rates[3] >= 0, rates)

    def test_notebook(self):
        with tempfile.TemporaryDirectory() as folder:
            command = ("--to", "notebook", "--execute", "--output-dir", folder, EXAMPLES / "topologies.ipynb")
            run(folder, "nbconvert", *command, IPYTHONDIR=folder, MPLCONFIGDIR=folder, JUPYTER_RUNTIME_DIR=folder)
            notebook = json.loads(pathlib.Path(folder, "topologies.ipynb").read_text())
        outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
        self.assertEqual(sum("image/png" in output.get("data", ()) for output in outputs), 1)
        said = "".join("".join(output.get("text", ())) for output in outputs)
        distances = [float(distance) for distance in re.findall(r"distance ([\d.]+)", said)]
        self.assertEqual(len(distances), 3, said)
        self.assertEqual(distances, sorted(distances, reverse=True), said)  # ring, base-2, complete


class Tasks(unittest.TestCase):
    """examples/python/tasks/ on small files of `starling pack`."""

    def final_loss(self, name, folder, *arguments):
        said = torchrun(folder, EXAMPLES / "tasks" / f"{name}.py", folder, *arguments)
        return float(re.search(r"^average of 2: loss (\S+)$", said, re.MULTILINE)[1])

    def test_text(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for file in ("train.bin", "val.bin"):
                folder.joinpath(file).write_bytes(b"".join(struct.pack("<H", 3 * i % 20) for i in range(2000)))
            loss = self.final_loss("text", folder, "--vocabulary", 20, "--context", 16, "--width", 32, "--steps", 60)
        self.assertLess(loss, 1)  # log 20 = 3

    def test_images(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for split in ("train", "val"):
                for colour in ("red", "blue"):
                    place = folder / "raw" / split / colour
                    place.mkdir(parents=True)
                    for i in range(16):
                        Image.new("RGB", (40, 40 + i), colour).save(place / f"{i}.jpg")
            subprocess.run([os.environ["STARLING"], "pack", "images", folder / "raw", folder / "out"], check=True,
                           env=os.environ | {"STARLING_PYTHON": sys.executable}, capture_output=True, timeout=LIMIT)
            loss = self.final_loss("images", folder / "out", "--size", 64, "--batch", 8, "--steps", 50)
        self.assertLess(loss, 0.4)  # log 2 = 0.69

    def test_translation(self):
        def sentences(pair):
            numbers = [2 + (pair * k) % 9 for k in range(1, 3 + pair % 3)]
            return numbers, [number + 9 for number in numbers]

        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            both = [sentence for pair in range(200) for sentence in sentences(pair)]
            ends = itertools.accumulate(map(len, both), initial=0)
            content = b"PAIR" + struct.pack("<IQ", 1, 200) + b"".join(struct.pack("<Q", end) for end in ends)
            content += b"".join(struct.pack("<H", token) for sentence in both for token in sentence)
            for file in ("train.pairs", "val.pairs"):
                folder.joinpath(file).write_bytes(content)
            loss = self.final_loss("translation", folder, "--vocabulary", 20, "--width", 32, "--steps", 150)
        self.assertLess(loss, 1)  # log 20 = 3


def loop():
    """Runs the script that COMMAND names, with its arguments, as torchrun does."""
    os.chdir(os.environ["FOLDER"])
    sys.argv = json.loads(os.environ["COMMAND"])
    sys.path[0] = str(pathlib.Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


class Loops(unittest.TestCase):
    """Each loop with DistributedDataParallel and with Starling, until it has learned something."""

    def both(self, name, *arguments, then=()):
        """The output and the files of each form. `then`: run once more after it has written, with
        these arguments appended."""
        for form in (f"{name}_ddp.py", f"{name}.py"):
            with tempfile.TemporaryDirectory() as own:
                said = ""
                for more in ((), then)[: 2 if then else 1]:
                    command = json.dumps([*map(str, (EXAMPLES / "loops" / form, *arguments, *more))])
                    ends = workers.ends(loop, 2, FOLDER=own, COMMAND=command)
                    said += "".join(said for _, said, _ in ends)
                    self.assertEqual([code for code, *_ in ends], [0, 0], said)
                yield said, [file.name for file in pathlib.Path(own).iterdir()]

    @staticmethod
    def stripes(count, size, channels):
        """Images whose class is the place of a bright row."""
        torch.manual_seed(0)
        labels = torch.arange(count) % 10
        images = torch.randint(0, 128, (count, channels, size, size), dtype=torch.uint8)
        for image, label in zip(images, labels, strict=True):
            image[:, 2 * label : 2 * label + 2] = 255
        return images, labels

    def test_mnist(self):
        with tempfile.TemporaryDirectory() as folder:
            for which, count in (("train", 1024), ("t10k", 256)):
                images, labels = self.stripes(count, 28, 1)
                for kind, data in (("images-idx3", images[:, 0]), ("labels-idx1", labels.to(torch.uint8))):
                    sizes = b"".join(size.to_bytes(4, "big") for size in data.shape)
                    content = bytes([0, 0, 8, data.ndim]) + sizes + data.numpy().tobytes()
                    pathlib.Path(folder, f"{which}-{kind}-ubyte.gz").write_bytes(gzip.compress(content))
            for said, written in self.both("mnist", folder, "--epochs", 2, "--batch-size", 16, "--save-model"):
                self.assertGreater(float(re.findall(r"Accuracy: ([\d.]+)%", said)[-1]), 90, said)
                self.assertEqual(written, ["mnist_cnn.pt"])

    def test_imagenet(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, count in (("train.pt", 1024), ("val.pt", 256)):
                images, labels = self.stripes(count, 20, 3)
                torch.save({"images": images, "labels": labels}, pathlib.Path(folder, name))
            for said, written in self.both("imagenet", folder, "--epochs", 2, "--lr", 0.05,
                                           then=("--epochs", 4, "--resume", "checkpoint.pth.tar")):
                self.assertEqual(re.findall(r"^Epoch: \[(\d)\]\[0/", said, re.MULTILINE), [*"0123"], said)
                self.assertGreater(float(re.findall(r"Acc@1 ([\d.]+) Acc@5", said)[-1]), 50, said)
                self.assertEqual(written, ["checkpoint.pth.tar"])

    def test_gpt(self):
        for said, written in self.both("gpt", EXAMPLES.parent.parent / "LICENSE", 150):
            losses = [float(loss) for loss in re.findall(r"val loss ([\d.]+)", said)]
            self.assertLess(losses[-1], 4, said)  # log 256 = 5.5: nothing learned
            self.assertEqual(written, ["ckpt.pt"])


if __name__ == "__main__":
    workers.main()
