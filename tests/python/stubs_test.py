"""_C.pyi beside the extension: the same names, and the same number of parameters, with the same
names if both name them. Also a type checker's output for a script."""

import ast
import inspect
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import starling
from starling import _C

STUBS = ast.parse(pathlib.Path(starling.__file__).with_name("_C.pyi").read_text())
SCRIPT = """
import starling
import torch

net = torch.nn.Linear(2, 2)
optimizer = starling.AdamW(net.parameters(), lr=1e-3, topology="ring", wire="bf16", model=net, max_wait=None, foreach=None)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
optimizer.step(lambda: 1.0)
with optimizer.consensus() as average:
    workers: int = average.workers
distance: float = optimizer.consensus_distance()
around: torch.optim.Optimizer = starling.Decentralized(torch.optim.SGD(net.parameters()), scheme="atc")
count: int = starling.average(net)
starling.AccumAdamW(net.parameters(), window=8, topolgy="ring")  # refused: call-arg
starling.SGD(net.parameters(), wire=8)  # refused: arg-type
host: str = starling.init(timeout=9.5).rank  # refused: assignment
optimizer.consensus(True, 1)  # refused: call-arg
"""


def stubbed(body):
    """The members of a module or class by name: its functions (a list, as they may be overloaded)
    or other objects."""
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
    """The extension's own names; for a class without the members of every pybind11 class."""
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
        # The headline of overloaded ones.
        signatures = [each for each in signatures if "*args" not in each]
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

    def test_each_rule_has_a_class_with_its_options_and_defaults(self):
        for name, rule in _C.rules().items():
            self.assertIn(name, starling.__all__)
            given = inspect.signature(getattr(starling, name).__init__).parameters
            defaults = {key: each.default for key, each in given.items() if key in rule["options"]}
            wanted = {key: tuple(each) if isinstance(each, list) else each for key, each in rule["options"].items()}
            if name == "SGD":
                wanted["lr"] = 1e-3  # as torch's
            self.assertEqual(defaults, wanted, name)

    def test_a_type_checker_takes_a_script_and_refuses_its_errors(self):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "script.py")
            script.write_text(SCRIPT)
            paths = {"MYPYPATH": str(pathlib.Path(starling.__file__).parent.parent), "MYPY_CACHE_DIR": folder}
            done = subprocess.run([sys.executable, "-m", "mypy", "--follow-imports=silent", "--no-error-summary", script],
                                  env=os.environ | paths, capture_output=True, text=True)
        said = dict(re.findall(r"script\.py:(\d+): error: .*\[([\w-]+)\]", done.stdout))
        wanted = {str(number): line.split("# refused: ")[1]
                  for number, line in enumerate(SCRIPT.splitlines(), 1) if "# refused: " in line}
        self.assertEqual(said, wanted, done.stdout + done.stderr)
