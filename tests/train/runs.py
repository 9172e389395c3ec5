"""Runs with real processes, by the built command (its path is in the environment variable
STARLING), on synthetic images: ten kinds of bright squares in noise."""

import contextlib
import gzip
import json
import os
import pathlib
import random
import resource
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest

WORKERS = 3
EPOCHS = 8


def _write_images(folder, name, count, seed):
    generator = random.Random(seed)
    images, labels = bytearray(), bytearray()
    for _ in range(count):
        label = generator.randrange(10)
        image = bytearray(generator.randrange(100) for _ in range(28 * 28))
        top, left = 2 + 10 * (label // 4), 1 + 7 * (label % 4)
        for y in range(top, top + 6):
            image[28 * y + left : 28 * y + left + 5] = bytes([200] * 5)
        images += image
        labels.append(label)
    with gzip.open(folder / f"{name}-images-idx3-ubyte.gz", "wb") as file:
        file.write(struct.pack(">IIII", 0x803, count, 28, 28) + images)
    with gzip.open(folder / f"{name}-labels-idx1-ubyte.gz", "wb") as file:
        file.write(struct.pack(">II", 0x801, count) + labels)


def write_images(folder, train, test):
    """So many images of both kinds, in the files of Fashion-MNIST."""
    _write_images(folder, "train", train, 1)
    _write_images(folder, "t10k", test, 2)


class Images(unittest.TestCase):
    """Tests with a folder: images, a recipe for them, and a folder for each test's output."""

    maxDiff = None
    recipe_text, train_images, test_images, flip = "", 960, 200, "false"

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="starling-")))
        cls.data = cls.folder / "data"
        cls.data.mkdir()
        write_images(cls.data, cls.train_images, cls.test_images)
        cls.recipe = cls.folder / "recipe.toml"
        cls.recipe.write_text(
            f"{cls.recipe_text}\n[data]\ndir = '{cls.data}'\nflip = {cls.flip}\n[model]\nwidth = 8\n")

    def setUp(self):
        self.out = self.folder / self.id().rsplit(".", 1)[1]


def free_port(address):
    """Not an ephemeral port of the system, which another process could get a moment later."""
    for port in range(20000 + os.getpid() % 5000, 32000):
        with contextlib.suppress(OSError), socket.create_server((address, port)):
            return port
    raise AssertionError("no port is free")


def environment(**changed):
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "STARLING_TOKEN")}
    return {**kept, **changed}


def processes_of(launcher):
    """Rank -> process id of the living workers that this launcher has started."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = dict(
                line.split(b"=", 1) for line in (entry / "environ").read_bytes().split(b"\0") if b"=" in line)
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except (OSError, PermissionError):
            continue
        if variables.get(b"STARLING_LAUNCHER_PID") == str(launcher).encode() and state != "Z":
            found[int(variables[b"RANK"])] = int(entry.name)
    return found


def command(*arguments, code=0, inside=(), **more):
    """The end of the built command, started by the command `inside`."""
    done = subprocess.run([*map(str, inside), os.environ["STARLING"], *map(str, arguments)], env=environment(),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, **more)
    if done.returncode != code:
        raise AssertionError(f"exit code {done.returncode}: {done.stderr}")
    return done


def metrics_of(out):
    """Rank -> its lines of metrics.jsonl."""
    lines = {}
    for line in (out / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        lines.setdefault(record["rank"], []).append(record)
    return lines


def files_below(size):
    """For preexec_fn: as on a disk that is full when a file reaches this size."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, size - 1))

    return limit


def on_full_disk(folder):
    """A command that starts another one, for which this folder is a disk without a free byte."""
    full = 'mkdir -p "$0" && mount -t tmpfs -o size=4k full "$0" && head -c 4096 /dev/zero >"$0/full" && exec "$@"'
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", full, folder]


def may_mount():
    return subprocess.run(["unshare", "--map-root-user", "--mount", "true"], capture_output=True).returncode == 0


def long(test):
    """A test that trains several times: `make test` leaves it out."""
    test.long = True
    return test


def load_tests(loader, tests, pattern):
    """A module that imports it obeys the environment: STARLING_TESTS=short leaves out the long
    tests, and STARLING_TESTS=long selects them."""
    which = os.environ.get("STARLING_TESTS", "all")
    return unittest.TestSuite(
        test for case in tests for test in case
        if which == "all" or hasattr(getattr(test, test._testMethodName), "long") == (which == "long"))


class Run(Images):
    recipe_text = f"""
[run]
epochs = {EPOCHS}
[optimizer]
rule = "accum-adam"
lr = 0.01
window = 2
[schedule]
warmup = 0.1
[train]
batch = 16
[log]
every = 1
"""

    def start(self, *arguments, workers=WORKERS, **changed):
        command = [os.environ["STARLING"], "train", self.recipe, "--out", self.out, *arguments]
        if workers:
            command += ["--workers", str(workers)]
        return subprocess.Popen(command, env=environment(**changed), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self, process, code):
        stdout, stderr = process.communicate()
        self.assertEqual(process.returncode, code, stderr)
        self.assertEqual(processes_of(process.pid), {})
        return stdout, stderr

    def kill(self, process):
        """Kills the launcher. Its workers must end."""
        process.kill()
        process.communicate()
        while processes_of(process.pid):
            time.sleep(0.02)

    def train(self, *arguments, code=0, workers=WORKERS, **changed):
        return self.finish(self.start(*arguments, workers=workers, **changed), code)

    def usage_error(self, *arguments, **changed):
        stdout, stderr = self.train(*arguments, code=2, **changed)
        self.assertEqual(stdout, "")
        self.assertEqual(stderr.count("\n"), 1, stderr)
        return stderr.removeprefix("starling: ").rstrip("\n")

    def metrics(self):
        return metrics_of(self.out)

    def summary(self):
        return json.loads((self.out / "summary.json").read_text())

    def until(self, process, done):
        """Waits until done(the last step that each rank has logged)."""
        while True:
            try:
                steps = {rank: records[-1]["step"] for rank, records in self.metrics().items()}
            except (OSError, json.JSONDecodeError):
                steps = {}
            if steps and done(steps):
                return
            if process.poll() is not None:
                self.fail(f"ended after steps {steps}: {process.communicate()[1]}")
            time.sleep(0.02)

    def until_step(self, process, step, workers=WORKERS):
        """Waits until all workers have logged this step; returns their process ids by rank."""
        self.until(process, lambda steps: len(steps) == workers and min(steps.values()) >= step)
        return processes_of(process.pid)

    def check_run(self, scheme):
        lines = self.metrics()
        self.assertEqual(sorted(lines), list(range(WORKERS)))
        steps = EPOCHS * (960 // WORKERS // 16)
        for records in lines.values():
            self.assertEqual([record["step"] for record in records], list(range(1, steps + 1)))
            losses = [record["loss"] for record in records]
            self.assertLess(sum(losses[-10:]), 0.4 * sum(losses[:10]))
        summary = self.summary()
        self.assertEqual((summary["scheme"], summary["workers"], summary["workers_lost"]), (scheme, WORKERS, 0))
        self.assertEqual((summary["steps"], summary["samples"]), (steps, steps * 16 * WORKERS))
        self.assertGreaterEqual(summary["accuracy"], 0.95)
        self.assertGreaterEqual(summary["worst_accuracy"], 0.9)
        self.assertGreater(summary["bytes_sent_per_worker"], 0)
        self.assertEqual(summary["directed_aborted"], 0)
        # In gossip on a busy machine, a worker may answer too late, or stand still in an averaging.
        averaged = sum(edge["averaged"] for records in lines.values() for edge in records[-1].get("edges", []))
        self.assertLessEqual(summary["blocks_aborted"], 0.1 * averaged / WORKERS)
        return summary

    def states(self, step, workers=WORKERS):
        """Each worker's file after this step, all its bytes."""
        folder = self.out / "checkpoints" / f"step-{step}"
        return [(folder / f"worker-{rank}.safetensors").read_bytes() for rank in range(workers)]

    def losses(self):
        return {rank: [record["loss"] for record in records] for rank, records in self.metrics().items()}
