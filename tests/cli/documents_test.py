"""The commands and files that the documents show are those of the command."""

import functools
import json
import pathlib
import re
import tempfile

from command import CommandTest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")]
               if path.name != "CHANGELOG.md")


def fenced(page, language):
    """The blocks of code in a language."""
    blocks = re.findall(rf"^( *)```{language}\n(.*?)^\1```", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    return [re.sub(rf"(?m)^{indent}", "", text) for indent, text in blocks]


class Documents(CommandTest):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def file(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def test_commands_and_their_options_exist(self):
        @functools.cache
        def help_of(*words):
            return self.starling(*words, "--help")

        commands = re.findall(r"(?m)^  ([a-z]+) ", help_of().split("Subcommands:")[1].split("Examples:")[0])
        kinds = {name: re.findall(r"(?m)^  +([a-z]+)\b", help_of(name)) for name in ("checkpoint", "bench", "pack")}
        found = 0
        for page in PAGES:
            text = page.read_text().replace("\\\n", " ")
            shown = [line[4:] for line in text.splitlines() if line.startswith("    ")] + re.findall(r"`(starling [^`]+)`", text)
            for line in shown:
                for name, rest in re.findall(r"(?:^|\s)starling (?!import|was )([a-z]+)((?:\s+[^\s#<&|;]+)*)", line):
                    words = rest.split()
                    with self.subTest(page=page.name, line=line):
                        self.assertIn(name, commands)
                        known = help_of(name, *[kind for kind in words[:1] if kind in kinds.get(name, [])])
                        if "--section.key" in known:
                            known += help_of("train")
                        for option in words:
                            if option.startswith("--") and option != "--help":
                                self.assertRegex(known, rf"{re.escape(option)}\b")
                                found += 1
        self.assertGreater(found, 80)

    def test_recipes_studies_and_profiles_are_accepted(self):
        recipe = json.dumps(str(ROOT / "recipes/fashion-mnist.toml"))
        [pier] = fenced("choosing.md", "toml")
        self.starling("train", self.file("pier.toml", pier), "--workers", "2", "--run.steps", "100000", "--check")
        whole, methods = fenced("studies.md", "toml")
        methods = f'recipe = {recipe}\nrun = "simulate"\nworkers = 4\n{methods}run.seed = [1]\n'
        for number, study in enumerate((whole.replace('"../fashion-mnist.toml"', recipe), methods)):
            said = self.starling("study", self.file(f"study-{number}.toml", study), "--list")
            self.assertIn("to do ", said)
            self.assertNotIn("refused", said)
        [profile] = fenced("planner.md", "json")
        self.assertIn("Recommended: ", self.starling("plan", "--profile", self.file("profile.json", profile)))
