"""examples/launch/ray_train.py in a Ray cluster of this machine: two workers train, one is killed,
and Ray starts both again. Without network."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples/launch/ray_train.py"
LIMIT = 480  # seconds: a hang is a failure
EPOCHS = 6
WITH_TWO_CPUS = """
import runpy, sys, ray
sys.argv[:] = sys.argv[1:]
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, _temp_dir=sys.argv.pop(1))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def processes_of(folder):
    """Process id -> title of Ray's processes with this folder: its path is in their arguments, or
    they write their log there. Some have overwritten their arguments by a title."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().decode(errors="replace")
            files = [os.readlink(file) for file in (entry / "fd").iterdir()]
        except OSError:  # it has ended, or is another user's
            continue
        if str(folder) in arguments or any(file.startswith(f"{folder}/") for file in files):
            found[int(entry.name)] = arguments.split("\0")[0]
    return found


def until(condition, seconds):
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.2)
    return value


class Ray(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="starling-", ignore_cleanup_errors=True)))
        self.lines = self.folder / "out/metrics.jsonl"
        self.addCleanup(self.end_processes)

    def end_processes(self):
        for process in processes_of(self.folder):
            os.kill(process, signal.SIGKILL)

    def epochs(self):
        """The metrics of both workers, for each epoch."""
        text = self.lines.read_text() if self.lines.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def test_two_workers_train_and_come_back_after_a_death(self):
        environment = {
            **os.environ,
            "HOME": str(self.folder),  # Ray's token stays out of the user's
            "RAY_USAGE_STATS_ENABLED": "0",
            # Beside other work, the niceness of 15 that Ray gives its workers leaves them no time.
            "RAY_worker_niceness": "0",
            "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
        }
        options = ["--epochs", EPOCHS, "--out", self.folder / "out"]
        command = [sys.executable, "-c", WITH_TWO_CPUS, EXAMPLE, self.folder / "ray", *options]
        with (self.folder / "said").open("w+") as said:
            driver = subprocess.Popen([*map(str, command)], stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                                      env=environment, start_new_session=True)  # fmt: skip
            self.addCleanup(driver.kill)
            until(lambda: self.epochs() or driver.poll() is not None, LIMIT / 2)
            workers = [process for process, title in processes_of(self.folder).items() if title.startswith("ray::RayTrainWorker")]
            if len(workers) == 2:
                os.kill(workers[1], signal.SIGKILL)
            try:
                code = driver.wait(LIMIT / 2)
            except subprocess.TimeoutExpired:
                code = "none in time"
            said.seek(0)
            text = said.read()
        self.assertEqual((code, len(workers)), (0, 2), text)

        epochs = self.epochs()
        # The epoch of the death may have been reported, or is there once more.
        self.assertEqual(sorted({of_both[0]["epoch"] for of_both in epochs}), list(range(1, EPOCHS + 1)), epochs)
        self.assertIn("[FailurePolicy] RETRY", text)
        for of_both in epochs:
            first, second = of_both
            self.assertEqual(first["workers"], 2)
            self.assertNotEqual(first.pop("own_loss"), second.pop("own_loss"))  # nothing averages the gradients
            self.assertEqual(first, second)  # the same average model: all digits of its loss
            self.assertGreater(first["distance"], 0)
        self.assertLess(epochs[-1][0]["loss"], min(0.5, epochs[0][0]["loss"]))  # log 10 = 2.3: nothing learned
        self.assertRegex(text, r"(?m)^average of 2: loss \S+, distance \S+$")
        until(lambda: not processes_of(self.folder), 30)
        self.assertEqual(processes_of(self.folder), {})
