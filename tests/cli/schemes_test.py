import ast
import functools
import unittest

from command import CommandTest


class Schemes(CommandTest):
    @staticmethod
    @functools.cache  # a start of the command takes a while
    def described():
        """Name -> its description, in the order of the list."""
        self = Schemes()
        names = [line.split()[0] for line in self.starling("schemes").split("\n\n")[0].splitlines()]
        self.assertEqual(len(names), len(set(names)))
        return {name: self.starling("schemes", name) for name in names}

    def test_lists_all_and_describes_each(self):
        described = Schemes.described()
        self.assertEqual(next(iter(described)), "cta")
        for name, text in described.items():
            self.assertTrue(text.startswith(f"{name}\n"))
            for row in ("exchange", "edges", "wires", "one_in", "optimizer", "GPU", "hierarchy"):
                self.assertRegex(text, rf"\n  {row} +\S")
        self.assertIn("gamma: number, default 0, at least 0 and at most 1", described["choco"])
        self.assertIn("trigger: number, default 0, at least 0", described["choco"])

    def test_a_wrong_name_is_told_the_nearest(self):
        self.assertTrue(self.usage_error("schemes", "chocco").startswith(
            'scheme "chocco" is unknown, did you mean choco?: cta, '))

    def test_what_is_made_from_the_table_has_all_of_it(self):
        markdown, python, cpp = (self.starling("schemes", flag) for flag in ("--markdown", "--python", "--cpp"))
        keys = {"scheme"}
        for name, text in Schemes.described().items():
            self.assertIn(f"\n| `{name}` | ", markdown)
            self.assertIn(f'SchemeChoice choice("{name}");', cpp)
            self.assertIn(f'- "{name}"', python)
            options = text.split("\n\n")[2:]
            keys |= {option.split(":")[0].strip() for option in options}
        [options] = [node for node in ast.parse(python).body if isinstance(node, ast.ClassDef)]
        self.assertEqual({node.target.id for node in options.body if isinstance(node, ast.AnnAssign)}, keys)


if __name__ == "__main__":
    unittest.main()
