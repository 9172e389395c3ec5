"""_C.pyi beside the extension: the same names, and as many parameters, of the same names where both name them."""

import ast
import inspect
import pathlib
import re
import unittest

import starling
from starling import _C

STUBS = ast.parse(pathlib.Path(starling.__file__).with_name("_C.pyi").read_text())


def stubbed(body):
    """By name, of a module or class: its functions (a list, as they may be overloaded) or whatever else."""
    names = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            is_property = any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list)
            names.setdefault(node.name, []).extend([] if is_property else [node])
        elif isinstance(node, ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            names[node.target.id] = []
    return names


def registered(where):
    """Names of the extension's own; of a class without what every pybind11 class has."""
    ours = {name for name, value in vars(where).items() if not inspect.ismodule(value)}
    return {name for name in ours if not re.fullmatch(r"__(?!init__).*__|_pybind11\w*", name)}


def parameters(signature):
    """'f(self: X, a: dict[str, int], arg1: int = 3) -> None' has [self, a, arg1]."""
    inside = re.search(r"\((.*)\) ->", signature)[1]
    while (flat := re.sub(r"\[[^\[\]]*\]|=[^,]*", "", inside)) != inside:
        inside = flat
    return [part.split(":")[0].strip() for part in inside.split(",") if part.strip()]


class Stubs(unittest.TestCase):
    def check_function(self, name, stubs, function):
        signatures = re.findall(r"^(?:\d+\. )?\w+\(.*\) -> .*$", function.__doc__, re.MULTILINE)
        signatures = [each for each in signatures if "*args" not in each]  # the headline of overloaded ones
        self.assertEqual(len(stubs), len(signatures), name)
        for stub, signature in zip(stubs, signatures, strict=True):
            said = [each.arg for each in stub.args.args]
            there = parameters(signature)
            self.assertEqual(len(said), len(there), f"{name}: {signature}")
            for one, other in zip(said, there, strict=True):
                if not re.fullmatch(r"arg\d+|self", other):
                    self.assertEqual(one, other, f"{name}: {signature}")

    def test_they_are_what_the_extension_has(self):
        module = stubbed(STUBS.body)
        self.assertEqual(set(module), registered(_C))
        functions = 0
        for name, stub in module.items():
            if not isinstance(stub, ast.ClassDef):
                self.check_function(name, stub, getattr(_C, name))
                functions += 1
                continue
            members = stubbed(stub.body)
            if issubclass(getattr(_C, name), Exception):
                continue
            self.assertEqual(set(members), registered(getattr(_C, name)) - ({"__init__"} - set(members)), name)
            for member, stubs in members.items():
                if stubs:
                    self.check_function(f"{name}.{member}", stubs, getattr(getattr(_C, name), member))
                    functions += 1
        self.assertGreater(functions, 15)


if __name__ == "__main__":
    unittest.main()
