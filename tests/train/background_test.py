"""Checkpoints that are written while the run goes on, on a disk that is slow or breaks."""

import json
import os
import signal
import time

from runs import WORKERS, Run, command, load_tests, long  # noqa: F401  unittest calls load_tests

STEPS = 120


class Background(Run):
    arguments = ("--run.steps", str(STEPS), "--checkpoint.keep", "9", "--mixing.topology", "complete")

    def setUp(self):
        super().setUp()
        self.gate = self.out.with_suffix(".gate")
        self.checkpoints = self.out / "checkpoints"

    def on_slow_disk(self, *more, **variables):
        """A run in which no file of a worker is written before the gate is there."""
        process = self.start(*self.arguments, *more, LD_PRELOAD=os.environ["SLOW_DISK"],
                             **{"SLOW_DISK_GATE": str(self.gate), **variables})
        self.addCleanup(lambda: process.poll() is None and self.kill(process))
        return process

    def names(self):
        return sorted(path.name for path in self.checkpoints.iterdir())

    def files_of(self, step):
        """The ranks whose files a checkpoint has. All are verified."""
        shown = json.loads(command("checkpoint", "show", self.checkpoints / f"step-{step}", "--json").stdout)
        self.assertEqual(shown["step"], step)
        return [file["worker"] for file in shown["files"]]

    def until_writing(self, process, step, ranks):
        files = [self.checkpoints / f"step-{step}.tmp" / f"worker-{rank}.safetensors" for rank in ranks]
        while not all(file.exists() for file in files):
            self.assertIsNone(process.poll())
            time.sleep(0.02)

    def test_steps_go_on_while_the_files_are_written(self):
        process = self.on_slow_disk("--checkpoint-every", "80")
        self.until_step(process, STEPS)
        self.assertEqual(self.names(), ["step-80.tmp"])
        time.sleep(6)  # the last checkpoint waits so long, at least
        self.gate.touch()
        _, stderr = self.finish(process, 0)
        self.assertEqual(stderr.count(f"the checkpoint of step {STEPS} waited "), 1, stderr)
        self.assertIn("s until that of step 80 was written: the disk is slower than they come\n", stderr)
        for rank in range(WORKERS):
            self.assertIn(f"starling[{rank}]: this worker's disk has not written the checkpoint of step 80: waiting since ",
                          stderr)
        self.assertEqual(self.names(), ["latest", f"step-{STEPS}", "step-80"])
        for step in (80, STEPS):
            self.assertEqual(self.files_of(step), list(range(WORKERS)))
        # A run from there has the bits of one that did not stop.
        whole = self.states(STEPS)
        self.train(*self.arguments, "--checkpoint-every", "80", "--resume", self.checkpoints / "step-80")
        self.assertEqual(self.states(STEPS), whole)

    @long
    def test_a_slow_worker_delays_nobody(self):
        process = self.on_slow_disk("--checkpoint-every", "70", SLOW_DISK_RANK="1")
        self.until_step(process, STEPS)
        self.assertEqual(self.names(), ["step-70.tmp"])
        self.gate.touch()
        self.finish(process, 0)
        self.assertEqual(self.files_of(70), list(range(WORKERS)))
        self.assertEqual((self.checkpoints / "latest").read_text(), f"step-{STEPS}\n")

    @long
    def test_a_disk_that_breaks_costs_that_checkpoint(self):
        _, stderr = self.finish(self.on_slow_disk("--checkpoint-every", "60", SLOW_DISK_RANK="2", SLOW_DISK_GATE=""), 0)
        for step in (60, STEPS):
            self.assertEqual(stderr.count(f"no checkpoint of step {step}, the ones before it are kept: "), 1, stderr)
        self.assertEqual(stderr.count("worker-2.safetensors: cannot be brought to the disk"), 2, stderr)
        self.assertEqual(self.names(), [])
        self.assertEqual(self.summary()["steps"], STEPS)

    def test_a_job_that_is_killed_while_it_writes_keeps_the_last_good_one(self):
        self.train(*self.arguments, "--checkpoint-every", "60")
        whole, good = self.states(STEPS), self.checkpoints / "step-60"
        process = self.on_slow_disk("--checkpoint-every", "60", "--resume", good)
        self.until_writing(process, STEPS, range(WORKERS))
        self.kill(process)
        self.assertEqual(self.states(STEPS), whole)  # of the run before
        self.assertEqual(self.files_of(60), list(range(WORKERS)))
        self.train(*self.arguments, "--checkpoint-every", "60", "--resume", good)
        self.assertEqual(self.states(STEPS), whole)
        self.assertEqual(self.names(), ["latest", f"step-{STEPS}", "step-60"])

    def test_a_file_system_that_exchanges_no_folders(self):
        self.train(*self.arguments, "--checkpoint-every", "60")
        whole = self.states(STEPS)
        replaced = (self.checkpoints / f"step-{STEPS}").stat().st_ino
        self.gate.touch()
        process = self.on_slow_disk("--checkpoint-every", "60", "--resume", self.checkpoints / "step-60",
                                    SLOW_DISK_NO_EXCHANGE="1")
        _, stderr = self.finish(process, 0)
        self.assertNotIn("no checkpoint of step", stderr)
        self.assertNotEqual((self.checkpoints / f"step-{STEPS}").stat().st_ino, replaced)
        self.assertEqual(self.states(STEPS), whole)
        self.assertEqual(self.names(), ["latest", f"step-{STEPS}", "step-60"])

    @long
    def test_a_worker_that_is_killed_while_it_writes_is_left_out(self):
        process = self.on_slow_disk("--checkpoint-every", "50", SLOW_DISK_RANK="1")
        self.until_writing(process, 50, [1])
        os.kill(self.until_step(process, 1)[1], signal.SIGKILL)
        self.finish(process, 0)
        for step in (50, 100, STEPS):
            self.assertEqual(self.files_of(step), [0, 2])

    @long
    def test_the_worker_that_commits_is_killed_while_it_writes(self):
        process = self.on_slow_disk("--checkpoint-every", "50", SLOW_DISK_RANK="0")
        self.until_writing(process, 50, [0])
        os.kill(self.until_step(process, 1)[0], signal.SIGKILL)
        self.finish(process, 0)
        self.assertEqual(self.names(), ["latest", "step-100", f"step-{STEPS}"])  # that of step 50 is lost
        for step in (100, STEPS):
            self.assertEqual(self.files_of(step), [1, 2])
