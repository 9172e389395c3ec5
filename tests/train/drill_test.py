"""`starling drill` on a real run: workers are killed at random while they train, and come back."""

import json
import os
import pathlib
import re
import subprocess
import sys

from runs import Run, command, environment, load_tests, long  # noqa: F401

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from browser import open_page  # noqa: E402


class Drill(Run):
    def drill(self, *arguments, code=0):
        return command("drill", self.recipe, "--out", self.out, "--workers", 3, *arguments, code=code)

    @long
    def test_a_run_survives_kills(self):
        done = self.drill("--run.epochs", 200, "--kill-every", "2s", "--for", "20s", "--seed", 1, "--json")
        drill = json.loads(done.stdout)
        self.assertEqual((drill["exit_code"], drill["hung"], drill["seed"]), (0, False, 1))
        self.assertGreater(drill["kills"], 3)
        self.assertGreaterEqual(drill["restarts"], drill["kills"] - 2)
        self.assertGreater(len(drill["rejoin_seconds"]), 1)
        self.assertEqual(sum(life["killed"] for worker in drill["workers"] for life in worker["lives"]), drill["kills"])
        self.assertGreaterEqual(drill["accuracy"], 0.9)
        shown, _ = open_page(self.out / "drill.html", self.folder / "profile")
        self.assertIn("Who was there when", shown)
        self.assertEqual(len(re.findall(r'<line class="kill', shown)), drill["kills"] + drill["deaths"])
        self.assertNotRegex(shown, r'(?:src|href)="')

    def test_without_a_kill_it_is_the_run(self):
        done = self.drill("--for", "1ms", "--kill-every", "1h")
        rows = [line for line in done.stdout.splitlines() if line.startswith("worker ") and "=" in line]
        self.assertEqual(len(rows), 3, done.stdout)
        self.assertNotIn("x", "".join(rows))
        self.assertRegex(done.stdout, r"(?m)^outcome +the run has finished$")
        self.assertRegex(done.stdout, r"(?m)^restarts +0$")
        self.assertRegex(done.stdout, r"(?m)^test accuracy, average model +\d")
        self.assertIn("test accuracy", (self.out / "drill.log").read_text())

    def test_a_hang_is_an_error_that_names_phases(self):
        done = subprocess.run([os.environ["STARLING"], "drill", self.recipe, "--out", self.out, "--workers", "3",
                               "--for", "1ms", "--hang", "4s"], env=environment(STARLING_FAIL="optimizer:20:*:sleep=3600"),
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)
        for rank in range(3):
            self.assertRegex(done.stderr, rf"(?m)^starling: worker {rank}: step 19, last phase: optimizer of step 20\b")
        self.assertIn("starling: drill: no worker has logged a step for 4 s: the run hangs; ", done.stderr)
        self.assertRegex(done.stdout, r"(?m)^outcome +the run hung$")

    def test_wrong_input_is_one_line(self):
        for arguments, said in ((["--workers", 1], "--workers: Value 1 not in range 2 to "),
                                (["--kill-every", "3x"], "--kill-every: x unit not recognized"),
                                (["--kill-every", "0s"], "--kill-every: 0 s is not from 0.001 s to 720 h"),
                                (["--stop-share", 2], "--stop-share: Value 2 not in range 0"),
                                (["--mixing.scheme", "all-reduce"], "--restart is not for scheme all-reduce"),
                                (["--run.epochs", 0], "run.epochs = 0: out of range")):
            done = self.drill(*arguments, code=2)
            self.assertIn(said, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
