#!/usr/bin/env python3
"""The command `starling` of the wheel: becomes the program in the package, with the torch that this
Python has.

It imports neither, which would take seconds. It only searches for them.
"""

import importlib.util
import os
import pathlib
import runpy
import signal
import sys


def folder_of(package: str, requirement: str) -> pathlib.Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        sys.exit(f"starling: error: {sys.executable} has no package {package}: install {requirement} there")
    return pathlib.Path(spec.origin).parent


starling = folder_of("starling", "starling-dp")
built_with = runpy.run_path(str(starling / "_built_with.py"))["torch"]
torch = folder_of("torch", f"torch=={built_with}")
found = runpy.run_path(str(torch / "version.py"))["__version__"]
complaint = runpy.run_path(str(starling / "_torch_version.py"))["complaint"](built_with, found)
if complaint:
    sys.exit(f"starling: error: {complaint}")

environment = {"STARLING_PYTHON": sys.executable} | dict(os.environ)  # for `starling pack` and `translate`
if torch.resolve() != (starling.parent / "torch").resolve():  # the program searches there by itself
    libraries = [str(torch / "lib"), environment.get("LD_LIBRARY_PATH")]
    environment["LD_LIBRARY_PATH"] = ":".join(filter(None, libraries))
for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and the program would inherit it
    signal.signal(ignored, signal.SIG_DFL)
os.execve(starling / "bin/starling", ["starling", *sys.argv[1:]], environment)
