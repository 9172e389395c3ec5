"""Real runs in which STARLING_FAIL makes worker 1 fail. The others go on."""

import json
import os
import re
import signal

from runs import WORKERS, Run, load_tests, long, processes_of  # noqa: F401

STEP = 20


class Failpoints(Run):
    def run_with(self, phase, action, *arguments, code=0, step=STEP, rank=1):
        """stderr of a run in which this worker fails so at this step."""
        self.out = self.folder / f"{self.id().rsplit('.', 1)[1]}-{phase}-{action}"
        point = f"{phase}:{step}:{rank}:{action}"
        _, stderr = self.train("--checkpoint.every", str(STEP), *arguments, code=code, STARLING_FAIL=point)
        self.assertEqual(stderr.count(f"starling[{rank}]: failpoint {point} at step {step}\n"), 1, stderr)
        return stderr

    def check_others_went_on(self, rank=1):
        summary = self.summary()
        self.assertEqual((summary["workers"], summary["workers_lost"]), (WORKERS, 1))
        for other in range(WORKERS):
            if other != rank:
                self.assertEqual(self.metrics()[other][-1]["step"], summary["steps"])

    def check_killed(self, *phases, rank=1):
        for phase in phases:
            with self.subTest(phase):
                stderr = self.run_with(phase, "kill", rank=rank)
                self.assertIn(f"starling: worker {rank} was killed by signal 9\n", stderr)
                self.check_others_went_on(rank)
                done = {"optimizer": STEP - 1, "backward": STEP - 1, "forward": STEP - 1, "data": STEP - 1}
                last = self.metrics()[rank][-1]["step"]
                self.assertEqual(last, done.get(phase, last))

    # tests/faults/ has the kill in the backward pass among its smoke tests, and gradients of NaN.
    @long
    def test_a_kill_in_each_phase_of_a_step_costs_that_worker(self):
        self.check_killed("data", "backward", "optimizer", "vote")

    @long
    def test_a_kill_in_the_other_phases_too(self):
        self.check_killed("forward", "send", "average", "checkpoint-write")

    def test_a_worker_that_dies_while_it_commits_a_checkpoint_leaves_one_or_none(self):
        for phase, there in (("checkpoint-rename", False), ("checkpoint-latest", True)):
            with self.subTest(phase):
                self.run_with(phase, "kill", "--checkpoint.keep", "100", rank=0)
                self.check_others_went_on(rank=0)
                manifest = self.out / "checkpoints" / f"step-{STEP}" / "manifest.json"
                self.assertEqual(manifest.exists(), there)
                if there:
                    self.assertEqual(len(json.loads(manifest.read_text())["files"]), WORKERS)

    def test_a_worker_that_dies_in_the_rendezvous_ends_the_others_with_its_name(self):
        stderr = self.run_with("rendezvous", "kill", code=1, step=0)
        self.assertRegex(stderr, "worker 1 (has not come: it was killed by signal 9|is gone)")

    @long
    def test_exit_and_throw_end_the_worker_alone(self):
        for action, code in (("exit", 3), ("throw", 1)):
            with self.subTest(action):
                stderr = self.run_with("forward", action, code=code)
                self.assertIn(f"starling: worker 1 failed with exit code {code}\n", stderr)
                self.check_others_went_on()
        self.assertIn("starling: failpoint forward:20:1:throw at step 20\n", stderr)

    def test_a_checkpoint_that_throws_is_a_warning(self):
        stderr = self.run_with("checkpoint-write", "throw")
        self.assertIn(f"no checkpoint of step {STEP}, the ones before it are kept: failpoint", stderr)
        self.assertEqual(self.summary()["workers_lost"], 0)
        self.assertFalse((self.out / "checkpoints" / f"step-{STEP}").exists())

    @long
    def test_sleep_is_a_pause(self):
        self.run_with("optimizer", "sleep=1.5")
        self.assertEqual(self.summary()["workers_lost"], 0)
        seconds = [record["seconds"] for record in self.metrics()[1]]
        self.assertGreater(seconds[STEP - 1] - seconds[STEP - 2], 1.4)

    def test_stop_is_a_worker_that_stands_still(self):
        process = self.start(STARLING_FAIL=f"forward:{STEP}:1:stop")
        self.until(process, lambda steps: len(steps) == WORKERS and steps[0] > STEP + 1)
        worker = processes_of(process.pid)[1]
        with open(f"/proc/{worker}/stat") as file:
            self.assertEqual(file.read().rsplit(")", 1)[1].split()[0], "T")
        os.kill(worker, signal.SIGCONT)
        self.finish(process, 0)
        self.assertEqual(self.summary()["workers_lost"], 0)

    @long
    def test_nan_ends_the_worker_and_spoils_no_other(self):
        stderr = self.run_with("backward", "nan", code=1)
        self.assertRegex(stderr, r"(?m)^starling: rank 1: step 21: the loss is -?nan; ")
        self.check_others_went_on()
        self.assertGreaterEqual(self.summary()["accuracy"], 0.9)

    def test_a_wrong_value_is_one_line_of_each_worker(self):
        _, stderr = self.train(code=2, workers=0, STARLING_FAIL="optimzer:5:1:kill")
        self.assertRegex(stderr, r'^starling: environment: STARLING_FAIL: "optimzer:5:1:kill": unknown phase "optimzer", '
                         r"did you mean optimizer\?; there are: rendezvous, .*\n$")

    def test_workers_by_number_and_chance(self):
        point = "data:~0.1:*:sleep=0.001,seed=3"
        _, stderr = self.train(STARLING_FAIL=point)
        fired = {rank: re.findall(rf"(?m)^starling\[{rank}\]: failpoint \S+ at step (\d+)$", stderr)
                 for rank in range(WORKERS)}
        steps = self.summary()["steps"]
        for of_one in fired.values():
            self.assertGreater(len(of_one), 0.02 * steps)
            self.assertLess(len(of_one), 0.25 * steps)
        self.assertNotEqual(fired[0], fired[1])
