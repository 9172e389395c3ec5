import ast
import unittest

from command import CommandTest


class Schemes(CommandTest):
    def names(self):
        return [line.split()[0] for line in self.starling("schemes").split("\n\n")[0].splitlines()]

    def test_lists_all_and_describes_each(self):
        names = self.names()
        self.assertEqual(names[0], "cta")
        self.assertEqual(len(names), len(set(names)))
        for name in names:
            text = self.starling("schemes", name)
            self.assertTrue(text.startswith(f"{name}\n"))
            for row in ("exchange", "edges", "wires", "one_in", "optimizer", "GPU", "hierarchy"):
                self.assertRegex(text, rf"\n  {row} +\S")
        self.assertIn("gamma: number, default 0, at least 0 and at most 1", self.starling("schemes", "choco"))

    def test_a_wrong_name_is_told_the_nearest(self):
        self.assertTrue(self.usage_error("schemes", "chocco").startswith(
            'scheme "chocco" is unknown, did you mean choco?: cta, '))

    def test_what_is_made_from_the_table_has_all_of_it(self):
        markdown, python, cpp = (self.starling("schemes", flag) for flag in ("--markdown", "--python", "--cpp"))
        keys = {"scheme"}
        for name in self.names():
            self.assertIn(f"\n| `{name}` | ", markdown)
            self.assertIn(f'SchemeChoice choice("{name}");', cpp)
            self.assertIn(f'- "{name}"', python)
            options = self.starling("schemes", name).split("\n\n")[2:]
            keys |= {option.split(":")[0].strip() for option in options}
        [options] = [node for node in ast.parse(python).body if isinstance(node, ast.ClassDef)]
        self.assertEqual({node.target.id for node in options.body if isinstance(node, ast.AnnAssign)}, keys)


if __name__ == "__main__":
    unittest.main()
