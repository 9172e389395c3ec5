"""Runs the built command (its path is in the environment variable STARLING) and checks its
output."""

import os
import subprocess
import unittest


class CommandTest(unittest.TestCase):
    maxDiff = None

    def run_command(self, *arguments, **environment):
        return subprocess.run([os.environ["STARLING"], *arguments], env={**os.environ, **environment},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)

    def starling(self, *arguments, code=0, **environment):
        """stdout of the command, which must end with `code`; if that is 0, stderr must be empty."""
        done = self.run_command(*arguments, **environment)
        self.assertEqual(done.returncode, code, done.stderr)
        if code == 0:
            self.assertEqual(done.stderr, "")
        return done.stdout

    def usage_error(self, *arguments, code=2):
        """The one line on stderr of a command that must end with `code` and print nothing else."""
        done = self.run_command(*arguments)
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        self.assertTrue(done.stderr.startswith("starling: ") and done.stderr.endswith("\n"), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stderr.removeprefix("starling: ").removesuffix("\n")
