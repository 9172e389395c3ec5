import os
import pathlib
import subprocess
import unittest

from command import CommandTest

COMMANDS = ("train, drill, simulate, study, schemes, topology, probe, plan, bench, timeline, report, status, top, "
            "checkpoint, eval, generate, translate, pack, doctor")


class Main(CommandTest):
    def test_version(self):
        self.assertRegex(self.starling("--version"), r"^starling \d+\.\d+\.\d+\n$")

    def test_help_names_every_command_and_each_has_its_own(self):
        text = self.starling("--help")
        for command in COMMANDS.split(", "):
            self.assertRegex(text, rf"\n +{command} ")
            self.assertIn(f"usage: starling {command}", self.starling(command, "--help").lower())

    def test_a_command_is_needed(self):
        self.assertEqual(self.usage_error(), f"a command is needed: {COMMANDS} (starling --help describes them)")

    def test_unknown_command(self):
        self.assertEqual(self.usage_error("topologie"), f"unknown command 'topologie': known are {COMMANDS}")

    def test_unknown_option(self):
        self.assertEqual(self.usage_error("--verbose"), "unknown option '--verbose' (starling --help lists them)")
        self.assertEqual(self.usage_error("doctor", "--verbose"),
                         "The following argument was not expected: --verbose")

    def test_every_recipe_is_one(self):
        recipes = sorted((pathlib.Path(__file__).parent.parent.parent / "recipes").rglob("*.toml"))
        self.assertGreater(len(recipes), 3)
        for recipe in recipes:
            with self.subTest(recipe.name):
                if recipe.parent.name == "studies":
                    self.assertIn("to do ", self.starling("study", recipe, "--list"))
                else:
                    self.assertIn("[optimizer]", self.starling("train", recipe, "--print-config"))

    def test_a_result_that_cannot_be_written_is_a_failure(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([os.environ["STARLING"], "topology", "--list"], stdout=full, stderr=subprocess.PIPE,
                                  text=True, timeout=120)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "starling: cannot write to stdout: No space left on device\n")


if __name__ == "__main__":
    unittest.main()
