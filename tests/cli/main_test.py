import os
import pathlib
import subprocess
import tomllib

from command import CommandTest

COMMANDS = ("train, drill, simulate, study, schemes, topology, probe, plan, bench, timeline, report, status, top, "
            "checkpoint, eval, generate, translate, pack, doctor")


class Main(CommandTest):
    def test_version(self):
        self.assertRegex(self.starling("--version"), r"^starling \d+\.\d+\.\d+\n$")

    def test_help_names_every_command_and_each_has_its_own(self):
        text = self.starling("--help")
        for number, command in enumerate(COMMANDS.split(", ")):
            self.assertRegex(text, rf"\n +{command} ")
            width = (60, 120)[number % 2]
            said = self.starling(command, "--help", COLUMNS=str(width))
            self.assertIn(f"usage: starling {command}", said.lower())
            self.assertIn("Examples:", said)
            self.assertNotIn("INT in [", said)
            self.assertNotRegex(said, r"(?m)^Usage: .* \[?[a-z]+\]?(\.\.\.)?$")  # arguments as below it, in capitals
            for line in said.split("Examples:")[0].splitlines():
                self.assertLessEqual(len(line), width, line)

    def test_the_range_of_a_time_has_units(self):
        self.assertIn("such as 500ms or 5s (default: 1s) (0.1 s to 720 h)", " ".join(self.starling("top", "--help").split()))

    def test_one_command_lists_the_keys_of_a_recipe(self):
        said = self.starling("train", "--help")
        self.assertIn("\n  --mixing.wire ", said)
        self.assertNotIn("--section.key", said)
        for command in ("drill", "simulate", "eval", "generate", "translate"):
            said = self.starling(command, "--help")
            self.assertNotIn("--mixing.wire", said)
            self.assertLess(said.count("\n"), 80)
            self.assertIn("--section.key VALUE set a key of the recipe; `starling train --help` lists all",
                          " ".join(said.split()))
            self.assertIn("did you mean --mixing.wire? (", self.usage_error(command, "x", "--wire", "int8"))

    def test_a_command_is_needed(self):
        self.assertEqual(self.usage_error(), f"a command is needed: {COMMANDS} (starling --help describes them)")

    def test_unknown_command(self):
        self.assertEqual(self.usage_error("topologie"),
                         f"unknown command 'topologie', did you mean topology?: known are {COMMANDS}")
        self.assertIn("did you mean train?", self.usage_error("trian", "--help"))
        self.assertIn("checkpoint: unknown command 'shwo', did you mean show?", self.usage_error("checkpoint", "shwo"))
        self.assertEqual(self.starling("help", "train"), self.starling("train", "--help"))

    def test_unknown_option(self):
        self.assertEqual(self.usage_error("--verbose"), "unknown option '--verbose' (starling --help lists all)")
        self.assertEqual(self.usage_error("doctor", "--verbose"),
                         "doctor: unknown option '--verbose' (starling doctor --help lists all)")
        for wrong, right in (("--worker", "--workers"), ("--lr", "--optimizer.lr"), ("--topolgy", "--topology")):
            self.assertIn(f"train: unknown option '{wrong}', did you mean {right}? (",
                          self.usage_error("train", "x.toml", wrong, "4"))
        self.assertIn('--workers: "four" is no number from 1 to ', self.usage_error("train", "x.toml", "--workers", "four"))

    def test_a_value_may_be_empty(self):
        recipe = pathlib.Path(__file__).parent.parent.parent / "recipes" / "resnet18-cifar10-a2cid2.toml"
        for given in (("--data.dir=",), ("--data.dir", "")):
            said = self.starling("train", recipe, *given, "--print-config")
            self.assertRegex(said, r'(?m)^dir = ""')

    def test_every_recipe_is_one(self):
        recipes = sorted((pathlib.Path(__file__).parent.parent.parent / "recipes").rglob("*.toml"))
        self.assertGreater(len(recipes), 3)
        for recipe in recipes:
            with self.subTest(recipe.name):
                if recipe.parent.name == "studies":
                    said = self.starling("study", recipe, "--list")
                    self.assertIn("to do ", said)
                    self.assertNotIn("refused", said)
                else:
                    self.assertIn("[optimizer]", self.starling("train", recipe, "--print-config"))

    def test_a_twin_is_the_same_job_with_an_all_reduce(self):
        twins = sorted((pathlib.Path(__file__).parent.parent.parent / "recipes").rglob("*-all-reduce.toml"))
        self.assertGreater(len(twins), 3)
        for path in twins:
            with self.subTest(path.name):
                twin, recipe = (tomllib.loads(each.read_text())
                                for each in (path, path.with_name(path.name.replace("-all-reduce", ""))))
                self.assertEqual(twin.pop("mixing"), {"scheme": "all-reduce"})
                del recipe["mixing"]
                for keys in (twin, recipe):
                    for section, names in (("run", ("out", "ends")), ("optimizer", ("rule", "lr", "betas", "window"))):
                        for name in names:
                            keys[section].pop(name, None)
                self.assertEqual(twin, recipe)

    def test_a_result_that_cannot_be_written_is_a_failure(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([os.environ["STARLING"], "topology", "--list"], stdout=full, stderr=subprocess.PIPE,
                                  text=True, timeout=120)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "starling: cannot write to stdout: No space left on device\n")
